"""What our settings are called elsewhere, and what they were called here before: one table for each.

The first suggests the right word for one that users of other libraries type. The second reads run directories and
results that were written under the first names.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from iecl.errors import did_you_mean

ELSEWHERE: dict[str, str] = {
    "optimizer.lr": "learning_rate base_lr blr max_lr peak_lr init_lr start_lr",
    "optimizer.weight_decay": "wd decay l2 weight_decay_rate",
    "optimizer.name": "opt optim optimizer optimizer_name solver",
    "optimizer.momentum": "beta1 betas sgd_momentum",
    "optimizer.beta2": "adam_beta2",
    "optimizer.warmup_epochs": "warmup warmup_steps warm_up lr_warmup scheduler sched lr_scheduler lr_schedule",
    "optimizer.min_lr_ratio": "min_lr eta_min final_lr lr_min end_lr",
    "optimizer.lr_base_batch": "lr_scale auto_lr scale_lr base_batch_size",
    "optimizer.grad_clip": "clip clip_grad clip_norm gradient_clip gradient_clip_val max_grad_norm clip_gradients",
    "optimizer.trust_coefficient": "trust eta_lars lars_eta trust_coef",
    "optimizer.decay_norms": "exclude_bias_n_norm exclude_bias_and_norm bias_decay norm_decay",
    "training.epochs": "max_epochs n_epochs num_epochs num_train_epochs epoch ep",
    "training.batch_size": "bs batch batchsize train_batch_size per_device_batch_size batch_size_per_device b",
    "training.grad_accumulation": "accumulate accumulate_grad_batches gradient_accumulation "
    "gradient_accumulation_steps grad_accum accum_iter accum_steps",
    "training.gradient_checkpointing": "recompute grad_checkpointing activation_checkpointing checkpointing",
    "training.grad_cache": "gradcache gradient_cache gradient_caching chunk_size mini_batch_size micro_batch_size",
    "training.precision": "amp fp16 bf16 half mixed_precision autocast dtype fp32",
    "training.accelerator": "device cuda cpu mps",
    "training.devices": "gpus num_gpus n_gpus ngpus gpu_ids num_devices nproc nproc_per_node",
    "training.nodes": "num_nodes nnodes n_nodes",
    "training.strategy": "ddp distributed dist_backend",
    "training.sync_batch_norm": "sync_bn syncbn sync_batchnorm global_bn convert_sync_batchnorm dist_bn",
    "training.seed": "random_seed manual_seed seed_everything rng",
    "training.log_steps": "log_every_n_steps log_interval log_every print_freq log_freq",
    "training.checkpoint_steps": "save_every save_freq save_steps checkpoint_every every_n_train_steps ckpt_every",
    "training.online_eval_epochs": "online_eval eval_every knn_every eval_freq check_val_every_n_epoch val_interval",
    "training.loggers": "logger tensorboard wandb mlflow log_to use_wandb",
    "training.compile": "torch_compile torchcompile jit",
    "data.name": "dataset data_dir data_path dataset_path dataset_dir train_dir train_data input_dir input root_dir "
    "train_data_path folder images",
    "data.image_size": "img_size imgsize image_sz input_size resolution size crop_size img_sz transform_size",
    "data.num_workers": "workers num_worker n_workers loader_workers dataloader_workers nworkers j",
    "data.cache_megabytes": "cache in_memory cache_images keep_in_memory",
    "data.decode_size": "resize resize_size load_size",
    "data.labels": "targets classes use_labels",
    "augmentation.policy": "aug augs augment augmentation augmentations transform transforms transform_args views",
    "augmentation.scale": "crop_scale min_scale crop_min_scale area_range crop_low",
    "augmentation.hflip_prob": "hf_prob hflip flip horizontal_flip horizontal_flip_prob flip_prob mirror",
    "augmentation.color_jitter_prob": "cj_prob color_jitter jitter jitter_prob colorjitter",
    "augmentation.brightness": "cj_bright",
    "augmentation.contrast": "cj_contrast",
    "augmentation.saturation": "cj_sat",
    "augmentation.hue": "cj_hue",
    "augmentation.grayscale_prob": "grayscale gray_scale random_gray_scale gray random_grayscale gray_prob",
    "augmentation.gaussian_blur_prob": "gaussian_blur blur blur_prob gaussian_prob",
    "augmentation.sigma": "sigmas blur_sigma kernel_sigma",
    "augmentation.solarize_prob": "solarize solarization solarization_prob",
    "augmentation.vflip_prob": "vf_prob vflip vertical_flip vertical_flip_prob",
    "augmentation.rot90_prob": "rr_prob rot90 rotate90 right_angle right_angle_prob right_angle_rotation",
    "augmentation.rotation_prob": "rotate rotation random_rotation rotate_prob",
    "augmentation.degrees": "rr_degrees angle max_angle rotation_degrees",
    "augmentation.posterize_prob": "posterize posterization",
    "augmentation.posterize_bits": "bits",
    "augmentation.equalize_prob": "equalize equalization",
    "augmentation.sharpness_prob": "sharpness sharpen adjust_sharpness",
    "augmentation.sobel_prob": "sobel edges",
    "augmentation.gaussian_noise_prob": "gaussian_noise noise_prob",
    "augmentation.noise_sigma": "noise_std",
    "augmentation.erasing_prob": "cutout cutout_prob random_erasing erasing erase reprob",
    "backbone.name": "arch architecture model model_name encoder network net backbone_name base_model",
    "method.name": "ssl_method algorithm algo loss_name method_name framework objective_name",
    "method.temperature": "tau temp t softmax_temperature temperature_param",
    "method.ema_momentum": "ema ema_decay ema_rate momentum_ema base_tau base_tau_momentum momentum_encoder "
    "teacher_momentum momentum_teacher m",
    "method.hidden_dim": "hidden proj_hidden_dim projector_dim mlp_dim projection_hidden_dim hidden_size",
    "method.out_dim": "out output_dim proj_output_dim proj_dim projection_dim embedding_dim embed_dim dim",
    "method.predictor_hidden_dim": "pred_hidden_dim predictor_dim",
    "method.num_layers": "layers proj_layers n_layers mlp_layers",
    "method.queue_size": "queue memory_bank_size memory_bank queue_length moco_k bank_size",
    "method.local_crops": "n_local_crops local_crops_number num_small_crops small_crops num_local_views num_crops",
    "method.num_prototypes": "prototypes n_prototypes",
    "method.num_clusters": "clusters n_clusters k_means num_centroids",
    "saib.form": "saib block",
    "saib.patch_size": "patch patchsize",
    "saib.host_gradient": "saib_gradient adversarial",
    "saib.weight_decay": "saib_weight_decay",
    "method.host": "base_method wrapped_method",
    "--out": "output_dir out_dir save_dir log_dir exp_dir run_dir output work_dir default_root_dir checkpoint_dir",
    "--init-from": "pretrained pretrained_weights weights init load_from load checkpoint ckpt start_from "
    "resume_weights from_checkpoint",
    "--resume": "resume_from_checkpoint resume_from ckpt_path resume_training continue auto_resume",
    "--overwrite": "force exist_ok clobber",
    "--recipe": "config cfg config_file preset conf yaml",
    "--quiet": "silent verbose no_progress progress_bar",
}
"""Our name, and words for the same thing in lightly, timm, solo-learn, Lightning, torchvision and others."""

FORMER: dict[str, dict[str, str]] = {
    "data": {"canvas": "decode_size", "resident_megabytes": "cache_megabytes", "workers": "num_workers"},
    "saib": {"patch": "patch_size", "position": "pos_embed", "units": "hidden_dim"},
    "optimizer": {
        "rate": "lr",
        "rate_per": "lr_base_batch",
        "trust": "trust_coefficient",
        "trust_limit": "trust_clip",
        "warmup": "warmup_epochs",
        "floor": "min_lr_ratio",
        "clip": "grad_clip",
    },
    "training": {
        "batch": "batch_size",
        "accumulate": "grad_accumulation",
        "recompute": "gradient_checkpointing",
        "look_epochs": "online_eval_epochs",
    },
    "method": {
        "hidden": "hidden_dim",
        "out": "out_dim",
        "layers": "num_layers",
        "predictor_hidden": "predictor_hidden_dim",
        "keep": "ema_momentum",
        "queue": "queue_size",
        "small": "local_crops",
        "prototypes": "num_prototypes",
        "clusters": "num_clusters",
        "clusterings": "num_clusterings",
        "smoothing": "label_smoothing",
        "views": "num_views",
        "rate": "lr",
        "transformer_rate": "transformer_lr",
        "thin_rate": "bias_lr",
        "neighbours": "num_neighbors",
        "neighbour_weight": "neighbor_weight",
        "centre_keep": "center_momentum",
        "teacher_start": "teacher_temperature_start",
        "teacher_warmup": "teacher_warmup_epochs",
        "queue_from": "queue_start_epoch",
        "group": "whitening_size",
        "repeats": "whitening_repeats",
    },
}
"""First names of settings by section; the sections themselves are in `FORMER_SECTIONS`."""
FORMER_GRADIENTS = {
    "entropy": {"host_gradient": "none"},
    "cooperative": {"host_gradient": "cooperative"},
    "adversarial": {"host_gradient": "reversed"},
    "frozen": {"weights": "frozen"},
}
"""Values of `objective.saib_gradient`, and what has taken their place in `[saib]`."""
FORMER_SECTIONS = {"optimiser": "optimizer", "views": "augmentation"}
FORMER_PROTOCOL = {
    "batch": "batch_size",
    "rate": "lr",
    "rates": "lrs",
    "decays": "weight_decays",
    "backbone_rate": "backbone_lr",
    "warmup": "warmup_steps",
    "hidden": "hidden_dim",
    "mirror": "hflip",
    "normalise": "normalize",
    "share": "label_fraction",
    "shares": "label_fractions",
    "tries": "trials",
    "longest": "max_size",
    "short_sides": "min_sizes",
    "test_side": "test_min_size",
    "strength": "inverse_penalty",
}
"""First names in the protocols of results."""
FLAGS = {
    "data.name": "--data",
    "data.num_workers": "--workers",
    "augmentation.policy": "--augmentation",
    "backbone.name": "--backbone",
    "method.name": "--method",
    "saib.form": "--saib",
}
"""Flags that are not called like their setting."""
_MEANT = {name.rpartition(".")[2]: name for name in ELSEWHERE if not name.endswith(".name")}
_MEANT |= {word: name for name, words in ELSEWHERE.items() for word in words.split()}


def current_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run by section, under the names of today.

    >>> current_settings({"optimiser": {"rate": 1e-3, "momentum": 0.9}})
    {'optimizer': {'lr': 0.001, 'momentum': 0.9}}
    """
    made: dict[str, Any] = {}
    for section, table in values.items():
        name = FORMER_SECTIONS.get(section, section)
        former = FORMER.get(name, {})
        made[name] = (
            {former.get(key, key): item for key, item in table.items()} if isinstance(table, Mapping) else table
        )
    objective, saib = made.get("objective"), made.get("saib", {})
    if not (isinstance(objective, Mapping) and isinstance(saib, Mapping)):  # whoever checks the sections says so
        return made
    if objective.keys() & {"saib_gradient", "saib_weight_decay"}:
        own = dict(objective)
        moved = FORMER_GRADIENTS.get(str(own.pop("saib_gradient", "")), {})
        decay = {"weight_decay": own.pop("saib_weight_decay")} if "saib_weight_decay" in own else {}
        made |= {"objective": own, "saib": {**moved, **decay, **saib}}
    return made


def current_protocol(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol of a result under the names of today."""
    made = {FORMER_PROTOCOL.get(key, key): value for key, value in protocol.items()}
    return made | {"schedule": "multistep"} if made.get("schedule") == "steps" else made


def current_state(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint under the names of today."""
    made = {"optimizer" if key == "optimiser" else key: value for key, value in state.items()}
    if isinstance(made.get("method"), Mapping):  # DINO's center
        made["method"] = {
            name.removesuffix("centre") + "center" if name.endswith("centre") else name: tensor
            for name, tensor in made["method"].items()
        }
    return made


def suggested_flag(word: str, flags: Iterable[str]) -> str:
    """The flag that was meant, or the setting that has none.

    >>> suggested_flag("--learning-rate", ["--lr"]), suggested_flag("--clip-grad", ["--lr"])
    ('did you mean --lr?', 'did you mean --set optimizer.grad_clip=...?')
    """
    names = list(flags)
    meant = _MEANT.get(word.strip("-").replace("-", "_").lower(), "")
    own = FLAGS.get(meant, "--" + meant.strip("-").rpartition(".")[2].replace("_", "-"))
    if meant and own in names:
        return f"did you mean {own}?"
    if meant and not meant.startswith("--"):
        return f"did you mean --set {meant}=...?"
    return did_you_mean(word, names)


def suggestion(word: str, known: Iterable[str], section: str = "") -> str:
    """What somebody who typed an unknown word may have meant: by spelling if a word is near, else by meaning.

    Args:
        word: what was typed, as a key, a flag, or a section and a key.
        known: the words that are possible in its place.
        section: the section that it was typed in, if any.

    >>> suggestion("learning_rate", ["lr", "momentum"], "optimizer")
    'did you mean lr?'
    >>> suggestion("learning_rate", ["hidden_dim"], "method")
    'did you mean optimizer.lr?'
    """
    names = list(known)
    plain = word.strip("-").replace("-", "_").lower().rpartition(".")[2]
    former = FORMER.get(section, {}).get(plain)
    if former in names:
        return f"did you mean {former}?"
    meant = _MEANT.get(plain, "")
    own = meant.rpartition(".")[2]
    if meant and own in names and (not section or meant.startswith(section.partition(".")[0] + ".")):
        return f"did you mean {own}?"
    if meant:
        return f"did you mean {meant}?"
    return did_you_mean(word, names)


def suggested_place(section: str, table: Any) -> str:
    """Where a setting belongs that was given in a section of a former name; nothing for other sections.

    >>> suggested_place("views", {"query": {"blur": 1}})
    'did you mean augmentation.query.gaussian_blur_prob?'
    """
    if section not in FORMER_SECTIONS:
        return ""
    words = [FORMER_SECTIONS[section]]
    while isinstance(table, Mapping) and table:
        word, table = next(iter(table.items()))
        meant = _MEANT.get(word, "")
        words.append(meant.rpartition(".")[2] if meant.startswith(f"{words[0]}.") else word)
    return f"did you mean {'.'.join(words)}?"
