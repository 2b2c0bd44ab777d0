"""What `pds.table` is made of."""
