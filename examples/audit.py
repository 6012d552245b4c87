"""Which way do the annotators of a table lean? No model, no GPU: python examples/audit.py [votes.csv] [folder]."""

import sys

from badpo import Judgments, audit
from badpo.attributes import Length

table = sys.argv[1] if len(sys.argv) > 1 else "examples/votes.csv"
folder = sys.argv[2] if len(sys.argv) > 2 else "runs/audit-example"

judgments = Judgments.read(table, attributes=[Length(ratio=1.5)])
print(judgments)

result = audit(judgments)
for name, row in result.attributes.set_index("name").iterrows():
    print(
        f"{name}: wins {row['carrier_wins']:.0%}, log-odds {row['ci_low']:.2f} to {row['ci_high']:.2f}"
    )
for name, pool in result.pool.items():
    print(
        f"{name}: annotators differ by tau = {pool['tau']:.2f}; train with bias={pool['recommendation']!r}"
    )

print("page:", result.write(folder))
