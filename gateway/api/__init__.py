"""The HTTP API: resources, their JSON, problems, authorisation, the OpenAPI document."""
