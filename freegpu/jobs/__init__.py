"""What is asked for and what state it is in. Pure: no clock, no network, no database."""
