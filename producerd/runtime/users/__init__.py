"""What each user of the machine may still take: connections, the event loop's time, calls about unknown streams."""
