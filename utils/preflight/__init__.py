"""Minutes before a long run: what every node has, how fast its links and its storage are, and what is wrong.

sbatch sbatch/preflight.sbatch            (Slurm)
qsub -A <your project> -q debug sbatch/preflight.pbs   (PBS)
./workbook preflight --nodes 2            either, with the versions of the login node
./workbook preflight                      this machine
"""
