"""Where rewrites come from, one module per source."""
