"""Measurements of Outrigger against peers, run by `cargo xtask bench`. One module per suite."""
