"""The ledger: the committed outcomes of a dataset, and the only source of truth about what is done.

    ```
    DATASET/.batchmill/
      format.json                  {"ledger": 7}
      parts/RUN-ATTEMPT-N.parquet  outcomes; never changed after they are written
      parts/merged-RUN-N.parquet   the records of many small parts
      snapshots/RUN.json           the state that a run has left, and what made it; a version
      snapshots/RUN-state.parquet  a row for each known input
      snapshots/RUN-table.parquet  the table of a version
      snapshots/RUN-partitions.parquet  the partition of each input
      runs/RUN/plan.arrow          the inputs that a run executes
      runs/RUN/plan.json           the settings of the run, and the hashes of plan.arrow
      runs/RUN/summary.json        how the run ended, with a hash
      runs/RUN/stop                requests that the shards of the run end early
      runs/RUN/flow-run            the id of the flow run that executes the run
      runs/RUN/forced              the run up to which a forced run ignores all outcomes
      runs/RUN/creating/ROWS       rows of a shard that creates its torch Dataset
      runs/RUN/attempts/SHARD      the attempts at unfinished inputs of a shard
      runs/RUN/place/SHARD         the cluster node on which a shard has begun
      runs/RUN/split/SHARD         requests that the shard leaves its remaining inputs to others
      runs/RUN/split/SHARD-from    the first row of the plan that the shard left to others
      steps/IDENTITY.json          the description of a step
      released/RUN-ID.json         inputs whose outcomes up to RUN do not count
      kept.json                    the names of the versions that stay
      lease/NUMBER.json            the process that holds the dataset
      manifest.parquet             the manifest, if it was not a file
      staging/                     outputs that are being written
    ```

The state of a dataset is that of the last snapshot, with the parts of later runs.
"""
