"""What a task is, and the catalogue of known ones."""

from scimult.tasks.catalogue import Task, TaskSet, default_tasks

__all__ = ["Task", "TaskSet", "default_tasks"]
