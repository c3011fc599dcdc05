#!/bin/bash
# PCL on two nodes of four GPUs each. Send it off with: sbatch examples/slurm.sh
# Whatever ends the job (its time, a node, a preemption), it is queued again and goes on where it was.
#SBATCH --job-name=protonce
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1      # torchrun starts the processes, one for each GPU
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120        # two minutes before the end: enough to keep a checkpoint
#SBATCH --requeue
#SBATCH --open-mode=append       # one log for all attempts

DATA=${DATA:-imagenet/train}     # on a disk that all nodes see, like RUN
RUN=${RUN:-runs/paper}

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # or a restart may meet the addresses of the processes before it
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / 4))

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun \
    --nnodes="$SLURM_NNODES" --nproc-per-node=4 --max-restarts=3 \
    --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:29500" \
    -m protonce train "$DATA" --out "$RUN" --recipe pcl-v2 --resume

# Where the run has not ended, someone asked it to stop: go on in a new allocation.
[ -e "$RUN/encoder.safetensors" ] || scontrol requeue "$SLURM_JOB_ID"
