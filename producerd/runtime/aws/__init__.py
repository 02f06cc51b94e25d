"""AWS as the daemon uses it: clients, credentials, the clock, the transport.  Nothing else imports aiobotocore."""
