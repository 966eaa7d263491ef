"""verl: every checkpoint of the actor becomes a version.

Put this file where the driver can import it, and mount on the driver's host:

    weightfs mount --writer s3://my-runs/run-7 /mnt/w
    python -m verl.trainer.main_ppo ... \
        trainer.checkpoint_callback_class=verl_callback.Publish \
        trainer.save_freq=1 \
        'actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]'

hf_model makes verl gather the actor and save it as transformers does, below
global_step_N/actor/huggingface; that is what is published. The hook runs on the driver, which must
see that directory: one host, or a shared file system.
"""

import os

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from weightfs.integrations.steps import StepPublisher


class Publish(CheckpointCallback):
    def __init__(self, config=None):
        super().__init__(config)
        self.steps = StepPublisher(os.environ.get("WEIGHTFS_TARGET", "/mnt/w"))

    def on_save(self, trainer, global_step, checkpoint_dir, async_save=False, **kwargs):
        if async_save:
            raise RuntimeError("with checkpoint.async_save the files may be incomplete here; turn "
                               "it off")
        self.steps.has_room()  # raises what an earlier step has failed with
        self.steps.publish_folder(os.path.join(checkpoint_dir, "actor", "huggingface"),
                                  f"step-{global_step}", {"step": global_step})
        if global_step >= trainer.total_training_steps:
            self.steps.wait()
