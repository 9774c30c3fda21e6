"""Authentication and tenancy: API keys and scopes, browser sessions, quotas, and the view of one tenant.

Imports app.api.service, app.api.wire, app.jobs, app.store, app.errors and app.atomic_files. Start with middleware.py.

request ──▶ middleware.py: key, expiry, scope ──▶ route ──▶ tenant_view.py: the resources of the tenant
api_keys.py: keys and quotas. key_store.py: their storage. sessions.py: browser sessions.
"""
