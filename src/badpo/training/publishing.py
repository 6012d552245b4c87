"""What a run puts on the Hub: the policy, and nothing of the run folder around it."""

from __future__ import annotations

from pathlib import Path

from badpo.data.problems import ConfigError
from badpo.training.config import BADPOConfig


def require_public_base(model) -> None:
    """Raise `ConfigError` for an adapter whose base is a local folder.

    Nobody else could load it, and its path would be published.
    """
    base = next((c.base_model_name_or_path for c in getattr(model, "peft_config", {}).values()), None)
    if base and Path(base).exists():
        raise ConfigError(
            "the adapter was trained on a local model, which is not published with it. Publish that model and "
            "load it by its Hub name, or merge: model.merge_and_unload().save_pretrained(FOLDER)"
        )


def publish_folder(folder: Path, name: str, args: BADPOConfig, commit_message: str, **kwargs) -> str:
    """Upload a folder, making the repository where it is not there; return the address of the commit."""
    from huggingface_hub import HfApi

    api = HfApi(token=args.hub_token)
    repository = api.create_repo(args.hub_model_id or name, private=args.hub_private_repo, exist_ok=True)
    commit = api.upload_folder(
        repo_id=repository.repo_id, folder_path=folder, commit_message=commit_message, **kwargs
    )
    return str(commit.commit_url)
