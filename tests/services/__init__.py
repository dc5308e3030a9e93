"""Real services for the tests, started by the tests themselves as plain processes.

Nothing here needs a container engine. A service that cannot run on this machine raises `ServiceUnavailable` within
seconds and says what is missing; the fixtures turn that into a skip, or into a failure where services are required.
"""


class ServiceUnavailable(Exception):
    """This machine lacks something that the service needs; the message names it."""
