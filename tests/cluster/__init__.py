"""A real Kubernetes of two nodes on this machine, for the chart: ``./dev cluster``.

``place`` makes the network and mount namespaces that stand for machines.  ``programs`` builds Kubernetes, and
``images`` what its pods run.  ``nodes`` starts and ends the control plane and the nodes, with the keys of ``keys``, and
``dns`` answers for them.  ``trial`` has what cases are made of.  ``cases``, ``spark_cases`` and ``cloud_cases`` are
what is tried, and ``sts`` stands for AWS's.
"""
