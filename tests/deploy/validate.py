"""Objects held against the schemas of Kubernetes, strictly; runs in an environment of its own (``install.sh``).

Standard input: a JSON list of objects. Standard output: a JSON list of ``[index, version, what is wrong]``.
``python validate.py VERSION…``
"""

import json
import sys

import kubernetes_validate

failures = []
for index, document in enumerate(json.load(sys.stdin)):
    for version in sys.argv[1:]:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            failures.append([index, version, f"{list(error.path)}: {error.message[:300]}"])
        except kubernetes_validate.SchemaNotFoundError:
            failures.append([index, version, f"no schema for {document['apiVersion']} {document['kind']}"])
json.dump(failures, sys.stdout)
