"""The gain is a property of the class, which its metaclass defines."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["gain", "Settings", "_values"]


class SettingsMeta(type):
    _values = {"gain": 1.5}

    @property
    def gain(cls):
        return SettingsMeta._values["gain"]  # HERE

    @gain.setter
    def gain(cls, value):
        SettingsMeta._values["gain"] = value


class Settings(metaclass=SettingsMeta):
    pass


def make():
    Settings.gain = 1.5
    torch.manual_seed(0)
    x = torch.randn(4, device=DEVICE)

    def step():
        return (x * Settings.gain).relu()  # HERE

    def vary():
        Settings.gain = Settings.gain + 1

    return {"step": step, "vary": vary, "reset": None}
