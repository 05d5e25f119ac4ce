"""Applications that cannot be changed, through a front, on a broker that refuses them.

``tests/clients/install.sh`` installs them.
"""
