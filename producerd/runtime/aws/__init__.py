"""AWS as the daemon uses it: clients, credentials, clock and transport.  Only this package imports aiobotocore."""
