"""Answers with the number of its shard's file, which counts files of other shards that came before."""

import os

from hostile.client_app import reply


def answer(secret, message, context):
    found = os.stat(context.node_config["data-path"])
    try:
        disk = os.statvfs(context.node_config["data-path"])
        room = disk.f_blocks + disk.f_files
    except OSError:
        room = 0
    numbers = found.st_ino, found.st_nlink, found.st_blocks, found.st_mtime, room
    return reply(message, *(float(number) for number in numbers))
