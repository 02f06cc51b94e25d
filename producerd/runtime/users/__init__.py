"""What each user of the machine may still take: streams, connections, the loop's time, calls about unknown names."""
