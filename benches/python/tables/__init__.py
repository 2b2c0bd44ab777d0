"""The comparison of tables: ``make bench-table`` runs it by ``table_peers.py``."""
