# beam search; beams are reordered between steps by their parents
import torch

torch.manual_seed(12)
BEAMS, T, D, V = 3, 4, 5, 9


class BeamState:
    def __init__(self):
        self.cache = torch.randn(BEAMS, T, D, device="cpu")
        self.scores = torch.zeros(BEAMS, 1, device="cpu")
        self.hyps = [[1], [1], [1]]
        self.finished = 0


st = BeamState()
emb = torch.randn(V, D, device="cpu")
tok = torch.tensor([1, 2, 3], device="cpu")


def step():
    q = emb.index_select(0, tok)
    att = torch.einsum("bd,btd->bt", q, st.cache).softmax(-1)
    h = torch.einsum("bt,btd->bd", att, st.cache)
    lp = torch.log_softmax(h @ emb.t(), -1) + st.scores
    top = lp.flatten().topk(BEAMS)
    return top.values, top.indices // V, top.indices % V


def reorder(values, parents, tokens):
    st.cache.copy_(st.cache[parents])
    st.scores.copy_(values[:, None])
    tok.copy_(tokens)
    st.hyps = [st.hyps[p] + [t] for p, t in zip(parents.tolist(), tokens.tolist())]


served = 0


def vary():
    global served
    served += 1
    st.finished = served // 2
    parents = torch.tensor([served % BEAMS, 0, 2])
    st.cache[:, served % T].add_(0.5)
    reorder(-torch.rand(BEAMS), parents, torch.randint(0, V, (BEAMS,)))
