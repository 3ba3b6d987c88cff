"""`aiolocks ui`: serves the dashboard."""
