"""The replay guard: a chunk of a repeated micro-batch that is already stored is acknowledged without being sent.

The rows of a partition and stream, in order, are cut into chunks.  When every row of a chunk was acknowledged STORED,
its place and its digest are recorded.  When the same batch runs again, a chunk whose place and digest match a record is
left out.  No row is lost by this, however the partitions look: a place occurs once in a run, so the rows that are left
out are, as a multiset, part of the rows that are stored, and all others are sent.
"""
