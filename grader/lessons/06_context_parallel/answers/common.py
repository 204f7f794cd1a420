"""What other answers to several TODOs of 06_context_parallel have in common."""

# The same by messages between neighbours, so that only what is held tells.
GATHERED_BY_RING = """
every = {rank: [k_BHTK, v_BHTK]}
for step in range(1, world):
    every[(rank - step) % world] = pass_on(every[(rank - step + 1) % world], rank, world)
out_BHTK, lse_BHT = nothing_yet(q_BHTK)
for source in range(world):
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, *every[source], blocks(source))
return out_BHTK, lse_BHT
"""
