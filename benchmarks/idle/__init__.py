"""What a daemon costs a node while nothing is sent, and how soon it serves: ``./dev bench idle``.

A daemon as a service manager runs it: started a few times, then left alone, scraped, and with clients that rest.
"""
