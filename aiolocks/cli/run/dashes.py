"""Commands whose last argument is another command."""

from __future__ import annotations

import click


class BehindDashes(click.Command):
    """A command whose last argument is what stands behind `--`, untouched.

    Without the dashes it would be a matter of luck whose option `--ttl` is.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keeps the words after the dashes."""
        at = args.index("--") if "--" in args else len(args)
        own, command = args[:at], args[at + 1 :]
        asks_for_help = any(option in own for option in ctx.help_option_names)
        if (
            not command and not asks_for_help and not ctx.resilient_parsing
        ):  # a shell completes half of a line
            message = f"COMMAND is missing: put it after two dashes: {ctx.info_name} NAME -- COMMAND…"
            raise click.UsageError(message, ctx)
        ctx.meta[__name__] = command
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Shows the dashes, too."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND…"]


def behind_dashes() -> tuple[str, ...]:
    """The words after the dashes."""
    command: list[str] = click.get_current_context().meta[__name__]
    return tuple(command)
