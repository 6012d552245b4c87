"""Audit the biases in a table of votes, without a model or a GPU: python examples/audit.py [votes.csv] [folder]."""

import sys

from badpo import audit

table = sys.argv[1] if len(sys.argv) > 1 else "examples/votes.csv"
folder = sys.argv[2] if len(sys.argv) > 2 else "runs/audit-example"

result = audit(table, "length:ratio=1.5")
for name, row in result.pool.iterrows():
    interval = f"log-odds {row['ci_low']:.2f} to {row['ci_high']:.2f}"
    print(f"{name}: wins {row['win_rate']:.0%} of {row['n']:.0f} votes, {interval}")
    print(f"{name}: annotators differ by tau = {row['tau']:.2f}")

page = result.write(folder)
result.plot(f"{folder}/leans.svg")
print("page:", page)
