"""Who may do what: keys in `keys.py`, where they are kept in `vault.py`, the gate in `gate.py`, tenants in `view.py`.

request ──▶ gate: which key, is it good, does its scope cover this ──▶ route ──▶ view: the tenant's part of the service
"""
