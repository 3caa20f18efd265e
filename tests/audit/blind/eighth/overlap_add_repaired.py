# streaming audio codec: overlap-add keeps the tail of the last frame
import torch

torch.manual_seed(14)
HOP, WIN, CB = 4, 8, 6


class Decoder:
    def __init__(self):
        self.books = torch.randn(2, CB, WIN, device="cpu")
        self.window = torch.hann_window(WIN, device="cpu")
        self.tail = torch.zeros(HOP, device="cpu")
        self.frames_out = 0

    def decode(self, codes):
        frame = torch.zeros(WIN, device="cpu")
        for level in range(2):
            frame = frame + self.books[level].index_select(0, codes[level : level + 1])[0]
        frame = frame * self.window
        out = frame[:HOP] + self.tail
        self.tail.copy_(frame[HOP:])
        return out


decoder = Decoder()
codes = torch.tensor([1, 2], device="cpu")
gain = torch.ones(1, device="cpu")


def step():
    return decoder.decode(codes) * gain


def vary():
    decoder.frames_out += 1
    codes.copy_(torch.randint(0, CB, (2,)))
    gain.fill_(1.0 + 0.05 * decoder.frames_out)
