"""HTTP itself: connections, requests, routes, who calls, and errors as problems."""
