"""Explicit-state model of the publish protocol of a dataset folder (docs/publish.md).

Store: intent I, marker M, manifest F, parts P[2], staged uploads U. Pool: requests that were sent, whose sender does
not know their fate, and that may still land (or be dropped). Write 0 is the old dataset. Two parts at most. `cfg()`
lists what can be switched: store class, faults, crashes, takeovers, and each rule of the protocol.
"""

import sys, time
from collections import deque, namedtuple
from types import SimpleNamespace as NS

S = namedtuple("S", "I M F P U pool A f c t g")
A = namedtuple("A", "pc own w h s i lease res sa ack again")
CLAIM, ACTIVE, SINGLE = "C", "A", "S"
# An intent is (write, owner, version, phase, base manifest, base marker).


def cfg(**kw):
    c = NS(
        ops={1: "overwrite", 2: "overwrite"},
        np={0: 2, 1: 2, 2: 1, 9: 1},
        kind={0: "mpu", 1: "mpu", 2: "mpu", 9: "inline"},
        old=True,
        own=(1, 2),
        again=(0, 0),
        reader=None,
        faults=1,
        crashes=1,
        takeovers=1,
        lost=(),
        cap=1_500_000,
        # protocol
        verify=1,
        base=1,
        condP=1,
        condF=1,
        condM=1,
        condDel=1,
        sweep_first=1,
        resend_rel=0,
        genM=0,
        heal=0,
        give_up=0,
        abort_unknown=0,
        wait=1,
        single=0,
        life=0,
        nonce=1,
        gap=(),
        dup=("putI", "putF", "part", "delI", "delP"),
        bounded=("delM", "putM", "partI"),
        glob=1,
    )
    c.__dict__.update(kw)
    return c


def today(**kw):
    # dup of delI/delM: the HTTP layer sends again after a 5xx that came after the effect
    return cfg(
        **{
            **dict(
                nonce=0,
                verify=0,
                base=0,
                condP=0,
                condF=0,
                condM=0,
                condDel=0,
                sweep_first=0,
                resend_rel=1,
                wait=0,
                dup=("putI", "putF", "part", "partI", "delI", "delP", "delM", "putM"),
                bounded=(),
                glob=0,
            ),
            **kw,
        }
    )


def class_b(**kw):  # conditional PUT only: deletes of intent and strays are bounded, not fenced
    return cfg(
        **{**dict(condDel=0, bounded=("delM", "putM", "partI", "delI", "delP"), dup=("putI", "putF", "part")), **kw}
    )


def inline(C, w, i):
    k = C.kind[w]
    return (k if isinstance(k, str) else k[i]) == "inline"


def kind(C, r):
    return "partI" if r[0] == "part" and inline(C, r[2], r[1]) else r[0]


def is_(v):
    return ("is", v)


def holds(cur, cond):
    return cond is None or cur == cond[1]


def with_part(P, i, v):
    return P[:i] + (v,) + P[i + 1 :]


def apply(C, s, r):
    k = r[0]
    if k == "putI":
        return (s._replace(I=r[1]), "ok") if holds(s.I, r[2]) else (s, "no")
    if k == "delI":
        if s.I is None:
            return s, "gone"
        return (s._replace(I=None), "ok") if holds(s.I, r[1]) else (s, "no")
    if k == "putM":
        if r[1] is not None and s.M:
            return s, "no"
        g = s.g + 1 if C.genM else 1
        return s._replace(M=g, g=g if C.genM else 0), "ok"
    if k == "delM":
        if not s.M:
            return s, "gone"
        return (s._replace(M=0), "ok") if holds(s.M, r[1]) else (s, "no")
    if k == "putF":
        return (s._replace(F=r[1]), "ok") if holds(s.F, r[2]) else (s, "no")
    if k == "delF":
        return (s._replace(F=None), "ok") if holds(s.F, r[1]) else (s, "no")
    if k == "part":
        i, w, cond = r[1:]
        if not inline(C, w, i) and (w, i) not in s.U:
            return s, "gone"
        if not holds(s.P[i], cond):
            return s, "no"
        return s._replace(P=with_part(s.P, i, w), U=s.U - {(w, i)}), "ok"
    if k == "delP":
        return (s._replace(P=with_part(s.P, r[1], None)), "ok") if holds(s.P[r[1]], r[2]) else (s, "no")
    if k == "abort":
        return s._replace(U=frozenset(u for u in s.U if u[0] != r[1])), "ok"
    raise ValueError(r)


def request(C, n, a):
    """What actor n sends next; ('list',) reads everything at once."""
    pc, w, h = a.pc, a.w, a.h
    if pc == "start":
        # today's intent names no base and no phase
        return ("putI", (a.own, n, (100 * a.i + 1000 * a.ack) if C.nonce else 0, CLAIM, None, 0), is_(None))
    if pc == "take":
        return ("putI", (h[0], n, h[2] + 1) + h[3:], is_(h))
    if pc == "act":
        return ("putI", (w, n, h[2] + 1, SINGLE if is_single(C, w, a.s) else ACTIVE, a.s[2], 1), is_(h))
    if pc == "replace":
        return ("putI", (a.own, n, h[2] + 1, CLAIM, None, 0), is_(h))
    if pc == "dm":
        return ("delM", is_(a.s[1]) if C.genM else None)
    if pc in ("part", "sweep"):
        i, there = a.i, a.s[3][a.i]
        if C.ops.get(w) == "delete" or i >= C.np[w]:
            return ("delP", i, is_(there) if C.condDel else None)
        # a complete is conditional only where the store can; a PUT (inline) always
        return ("part", i, w, is_(there) if C.condP and (C.condDel or inline(C, w, i)) else None)
    if pc == "man":
        return ("putF", w, is_(a.s[2]) if C.condF else None)
    if pc == "delF":
        return ("delF", is_(a.s[2]) if C.condF else None)
    if pc in ("mark", "rollback", "healM"):
        return ("putM", is_(0) if C.condM and not (pc == "rollback" and C.genM) else None)
    if pc in ("abort", "rbabort"):
        return ("abort", w)
    if pc in ("rel", "relH"):
        return ("delI", is_(h) if C.condDel else None)
    if pc == "heal":
        return ("putI", (-1, n, 0, CLAIM, None, 0), is_(None))
    return ("list",)


def is_single(C, w, s):
    I, M, F, P = s
    return (
        C.single
        and C.ops[w] == "overwrite"
        and C.np[w] == 1
        and M
        and F is not None
        and C.np[F] == 1
        and P == (F, None)
    )


def finish(a, res):
    ack = a.ack or res == "ok"
    if a.again and res == "ok" and not a.ack:
        return a._replace(pc="start", w=a.own, h=None, s=None, i=0, lease=0, res="", ack=True, again=0)
    return a._replace(
        pc="done", w=0, h=None, s=None, i=0, lease=0, res=a.res and "ok" if a.ack else res, ack=ack, again=0
    )


def whole(C, F, P, glob=True):
    return (
        F is not None
        and all(P[i] == F for i in range(C.np[F]))
        and (not glob or all(P[i] is None for i in range(C.np[F], 2)))
    )


def released(a):
    if a.w == a.own:
        return finish(a, a.res)
    if a.own == 0:
        return finish(a, a.res or "cleaned")
    return a._replace(pc="start", w=a.own, h=None, s=None, i=0, lease=0, res="")


def lost(a):
    if a.w == a.own and a.own:
        return a._replace(pc="final", h=None, s=None, i=0, lease=0)
    return a._replace(pc="start", w=a.own, h=None, s=None, i=0, lease=0, res="") if a.own else finish(a, "lost")


def rel(a, res, abort=False):
    return a._replace(pc="abort" if abort else "rel", res=res, i=0)


def skip(C, a):
    """Moves over parts that need no request, and to what follows them."""
    while a.pc in ("part", "sweep"):
        dele, n = C.ops.get(a.w) == "delete", C.np[a.w]
        if a.i == 2 or a.pc == "part" and not dele and not C.sweep_first and a.i == n:
            if a.pc == "sweep":
                return a._replace(pc="rel", i=0)
            if dele:
                return rel(a, "ok")
            return a._replace(pc="man", i=0)
        # an inline or multipart part that is shown already needs nothing
        if (dele or a.i >= n) and a.s[3][a.i] is None or not dele and a.i < n and a.s[3][a.i] == a.w and C.base:
            a = a._replace(i=a.i + 1)
        else:
            return a
    if a.pc == "man" and a.s[2] == a.w and C.base:
        return rel(a, "ok") if a.h[3] == SINGLE and a.s[1] else a._replace(pc="mark")
    return a


def decide(C, s, a):
    """After a listing under an intent that we hold: what to do (the table of publish.md)."""
    I, M, F, P = a.s
    w, phase, base, op = a.w, a.h[3], a.h[4], C.ops[a.w]
    mine = w == a.own and a.h[3] == CLAIM and a.h[2] >= 0 and a.res != "taken"
    shown = any(P[i] == w for i in range(C.np[w])) or F == w
    if op == "delete":
        if not C.base or mine:
            if not M and F is None and P == (None, None):
                return rel(a, "nothing")
            return a._replace(pc="act", i=0) if M and C.base else a._replace(pc="dm") if M else after_dm(C, a)
        if phase == ACTIVE and F in (base, None):
            return a._replace(pc="dm") if M else after_dm(C, a)
        return rel(a, "dropped")
    if not C.base:  # today
        if M and F == w and P[0] == w:
            return a._replace(pc="sweep", i=C.np[w], res="ok")
        if M and op == "create":
            return rel(a, "exists", True)
        return a._replace(pc="dm" if M else "part", i=0, res="ok")
    if M and F == w:
        return rel(a, "ok")
    if mine:
        if M and op == "create":
            return rel(a, "exists", True)
        if a.ack:
            return rel(a, "superseded")  # this write was published before, and another came since
    elif M if phase == CLAIM and not shown else not (shown if phase == CLAIM else F in (base, w)):
        return rel(a, "dropped", True)
    elif phase == CLAIM and (M or not shown):
        return rel(a, "dropped", True)
    # verify: every part is staged or shown
    if C.verify and not all(P[i] == w or inline(C, w, i) or (w, i) in s.U for i in range(C.np[w])):
        if mine:
            return rel(a, "missing")
        if phase == ACTIVE and F == base and whole(C, F, P) and (not M or C.genM):
            return a._replace(pc="rbabort", i=0)
        if M and not shown:
            return rel(a, "dropped", True)
        if phase == CLAIM:
            return rel(a, "dropped", True)
        return stuck(C, a)
    return a._replace(pc="part" if not M or phase == SINGLE else "dm" if phase == ACTIVE else "act", i=0, res="ok")


def stuck(C, a):
    if a.own and a.own != a.w and C.ops[a.own] != "create":
        return a._replace(pc="replace")
    return finish(a, "incomplete")


def after_dm(C, a):
    if C.ops.get(a.w) == "delete" and a.s[2] is not None:
        return a._replace(pc="delF")
    return skip(C, a._replace(pc="part", i=0))


def after_act(C, a, p):
    if p != "act":
        return a
    return skip(C, a._replace(pc="part", i=0)) if a.h[3] == SINGLE else a._replace(pc="dm")


def on(C, s, n, a, r, res):
    """The actor's next local state; res: ok, no (condition), gone, ? (unknown) or a listing."""
    pc = a.pc
    go = lambda p, **k: a._replace(pc=p, **k)
    if pc == "start":
        if res == "ok":
            return go("list", h=r[1], w=a.own, i=0)
        if res == "?" and C.give_up:
            return go("abortX") if C.abort_unknown else finish(a, "unknown")
        # refused, but perhaps by an earlier send of our own
        return go("look0") if res == "?" or a.i else go("poll")
    if pc == "abortX":
        return finish(a, "unknown")
    if pc == "look0":
        I = res[0]
        if I is not None and I[:2] == (a.own, n):
            return go("list", h=I, w=a.own, i=0)
        return go("start", i=a.i + 1) if I is None else go("poll", i=0)
    if pc == "take":
        if res == "ok":
            return go("list", h=r[1], w=r[1][0], res="taken")
        return go("lookT", i=0) if res == "?" else go("poll", h=None)
    if pc == "lookT":
        I = res[0]
        if I == a.h:
            return go("take")
        if I is not None and I[1] == n:
            return go("list", h=I, w=I[0], res="taken")
        return go("poll", h=None)
    if pc in ("act", "replace"):
        if res == "ok":
            return after_act(C, go("list", h=r[1], w=r[1][0], res="ok" if pc == "act" else ""), pc)
        return go("look" + pc) if res == "?" else lost(a)
    if pc in ("lookact", "lookreplace"):
        I, p = res[0], pc[4:]
        if I == a.h:
            return go(p)
        if I is not None and I[1] == n and I[0] in (a.w, a.own):
            return after_act(C, go("list", h=I, w=I[0], res="ok" if p == "act" else ""), p)
        return lost(a)
    if pc == "list":
        if C.base and res[0] != a.h:
            return lost(a)  # the listing shows the intent as well
        return skip(C, decide(C, s, go("list", s=res)))
    if pc == "dm":
        if res == "no":
            return lost(a)
        return go("lookD") if res == "?" else after_dm(C, a)
    if pc == "lookD":
        return go("dm") if res[1] else after_dm(C, a)
    if pc in ("part", "sweep"):
        if res == "ok" or res == "no" and r[0] == "delP":
            return skip(C, go(pc, i=a.i + 1))
        return go("look" + pc)
    if pc in ("lookpart", "looksweep"):
        P, p, i = res[3], pc[4:], a.i
        dele = C.ops.get(a.w) == "delete" or i >= C.np[a.w]
        if P[i] == (None if dele else a.w):
            return skip(C, go(p, i=i + 1))
        if not dele and not inline(C, a.w, i) and (a.w, i) not in s.U:
            if a.w == a.own:
                return finish(a, "incomplete")
            return stuck(C, a)
        # something late is there: under our own intent it is replaced like what was listed
        if P[i] != a.s[3][i] and C.base and res[0] == a.h and not a.lease:
            return go(p, s=a.s[:3] + (with_part(a.s[3], i, P[i]),))
        return go(p) if P[i] == a.s[3][i] else lost(a)
    if pc == "man":
        return (
            skip(C, go("man", s=a.s[:2] + (a.w,) + a.s[3:]))
            if res == "ok" and C.base
            else go("mark")
            if res == "ok"
            else go("lookF")
        )
    if pc == "lookF":
        if res[2] == a.w:
            return skip(C, go("man", s=a.s[:2] + (a.w,) + a.s[3:])) if C.base else go("mark")
        if res[2] != a.s[2] and C.base and res[0] == a.h and not a.lease and not res[1]:
            return go("man", s=a.s[:2] + (res[2],) + a.s[3:])
        return go("man") if res[2] == a.s[2] else lost(a)
    if pc == "delF":
        return skip(C, go("part", i=0)) if res in ("ok", "gone") else go("lookDF")
    if pc == "lookDF":
        return skip(C, go("part", i=0)) if res[2] is None else go("delF") if res[2] == a.s[2] else lost(a)
    if pc in ("mark", "rollback"):
        nxt = (
            rel(a, "ok" if pc == "mark" else "dropped")
            if C.sweep_first or pc == "rollback"
            else skip(C, go("sweep", i=C.np[a.w], res="ok"))
        )
        return go("look" + pc) if res == "?" else nxt
    if pc in ("lookmark", "lookrollback"):
        return on(C, s, n, go(pc[4:]), r, "ok") if res[1] else go(pc[4:])
    if pc == "abort":
        return go("rel") if res != "?" else a
    if pc == "rbabort":
        return go("rblist")  # nothing of this write can be completed any more; was something, meanwhile?
    if pc == "rblist":
        return go("rollback", s=res) if whole(C, res[2], res[3]) and res[0] == a.h else stuck(C, a)
    if pc == "rel":
        if res == "?":
            return go("lookR") if C.condDel or C.resend_rel else released(a)
        return released(a)
    if pc == "lookR":
        return go("rel") if res[0] == a.h else released(a)
    if pc == "final":
        I, M, F, P = res
        good = M == 0 if C.ops[a.own] == "delete" else M and F == a.own
        return finish(a, "ok" if good and I is None else "superseded")
    # a sender whose unfenced request may have landed outside its window looks after the folder
    if pc == "heal":
        return go("healL", h=r[1]) if res == "ok" else go("heal?" if res == "?" else "healP")
    if pc == "healL":
        return go("healM" if not res[1] and whole(C, res[2], res[3]) else "relH")
    if pc == "healM":
        return go("relH") if res != "?" else go("healL")
    if pc == "relH":
        return lost(a._replace(w=a.own, h=None))
    if pc == "heal?":
        return go("healL", h=res[0]) if res[0] and res[0][:2] == (-1, n) else go("healP")
    raise ValueError(pc)


def step_reader(C, s, n, a):
    """A reader without checksums that looks at marker and manifest again: M, F, parts, M, F."""
    pc = a.pc
    if pc == "r0":
        return a._replace(pc="r1") if s.M else a._replace(pc="done", res="none")
    if pc == "r1":
        return a._replace(pc="r2", s=(s.F,), i=0) if s.F is not None else a._replace(pc="done", res="none")
    if pc == "r2":
        a = a._replace(s=a.s + (s.P[a.i],), i=a.i + 1)
        return a._replace(pc="r3" if C.reader == "again" else "r5") if a.i == C.np[a.s[0]] else a
    if pc == "r3":
        return a._replace(pc="r4") if s.M else a._replace(pc="done", res="none", s=None)
    if pc == "r4":
        return a._replace(pc="r5") if s.F == a.s[0] else a._replace(pc="done", res="none", s=None)
    F, parts = a.s[0], a.s[1:]
    return a._replace(
        pc="done", i=0, s=None, res="none" if None in parts else "read" if all(p == F for p in parts) else "MIXED"
    )


def put(s, n, a):
    return s._replace(A=s.A[:n] + (a,) + s.A[n + 1 :])


def live(s, n, kinds, C):
    return any(m[0] == n and kind(C, m[1]) in kinds for m in s.pool)


def successors(C, s, solo=None):
    for n, a in enumerate(s.A):
        if a.pc in ("done", "dead") or solo is not None and n != solo:
            continue
        if a.pc[0] == "r" and a.pc[1].isdigit():
            yield f"R {a.pc}", put(s, n, step_reader(C, s, n, a))
            continue
        if s.c and a.pc not in ("start",):
            yield f"{n} crashes at {a.pc}", put(s._replace(c=s.c - 1), n, a._replace(pc="dead", lease=0))
        if C.wait and live(s, n, C.bounded, C):
            continue  # drains its own unfenced requests first
        if a.pc in ("poll", "healP"):
            if s.I is None:
                yield (
                    f"{n} sees no intent",
                    put(
                        s,
                        n,
                        a._replace(pc="heal")
                        if a.pc == "healP"
                        else a._replace(pc="start")
                        if a.own
                        else finish(a, "cleaned"),
                    ),
                )
                continue
            if s.I[0] == -1:
                if s.A[s.I[1]].pc in ("done", "dead"):
                    yield f"{n} drops heal", put(s._replace(I=None), n, a)
                continue
            o = s.I[1]
            if live(s, o, C.bounded, C):
                continue  # whoever takes over waits for them as well
            b = s.A[o]
            held = b.pc not in ("done", "dead", "poll") and (
                b.pc in ("look0", "lookT") or b.pc == "start" and b.i or b.h is not None and b.h[:2] == s.I[:2]
            )
            if o == n or not held:
                yield f"{n} takes over from {o}", put(s, n, a._replace(pc="take", h=s.I))
            elif s.t and a.pc == "poll":
                t = put(s._replace(t=s.t - 1), o, s.A[o]._replace(lease=1))
                yield f"{n} takes over from stalled {o}", put(t, n, a._replace(pc="take", h=s.I))
            continue
        if (
            a.pc == "final"
            and s.I is not None
            and s.I[0] == a.own
            and s.I[1] != n
            and s.A[s.I[1]].pc not in ("done", "dead")
        ):
            continue
        if a.pc == "abortX":
            r = ("abort", a.w)
        else:
            r = request(C, n, a)
        k = kind(C, r)
        late = a.lease == 1
        if a.lease == 2 or late and (r[0] == "list" or k in C.bounded and k not in C.gap):
            b = a._replace(pc="heal", lease=0, h=None) if C.heal and a.lease == 2 else lost(a)
            yield f"{n} knows that it lost", put(s, n, b)
            continue
        if late:
            a2 = a._replace(lease=2)
        else:
            a2 = a
        if a.pc == "start" and a.sa is None:
            a2 = a2._replace(sa=tuple(x.ack for x in s.A))
        if r[0] == "list":
            b = on(C, s, n, a2, r, (s.I, s.M, s.F, s.P))
            yield f"{n} {a.pc} -> {b.pc}", put(s, n, b)
            continue

        def after(t, res):
            b = on(C, t, n, a2, r, res)
            return b._replace(lease=2) if late and b.pc not in ("done",) and b.pc != "final" else b

        t, res = apply(C, s, r)
        yield f"{n} {a.pc} {r} -> {res}", put(t, n, after(t, res))
        if s.f and r[0] != "abort":
            u = s._replace(f=s.f - 1)
            late_pool = tuple(sorted(s.pool + ((n, r),), key=repr))
            if res == "ok":
                v = t._replace(f=s.f - 1)
                yield f"{n} {a.pc} {r} applied, answer lost", put(v, n, after(v, "?"))
                if k in C.dup:
                    yield f"{n} {a.pc} {r} ok and once more later", put(v._replace(pool=late_pool), n, after(v, res))
            yield f"{n} {a.pc} {r} delayed", put(u._replace(pool=late_pool), n, after(u, "?"))
    if solo is None and C.life and s.c:
        for u in s.U:
            yield f"staged part {u} is removed", s._replace(U=s.U - {u}, c=s.c - 1)
    if solo is None:
        for j, (o, r) in enumerate(s.pool):
            if j and s.pool[j - 1] == (o, r):
                continue
            u = s._replace(pool=s.pool[:j] + s.pool[j + 1 :])
            t, res = apply(C, u, r)
            if res == "ok":
                yield f"late {o} {r} lands", t
            yield f"late {o} {r} is dropped", u


def blank(own, pc="start"):
    return A(pc, own, own, None, None, 0, 0, "", None, False, 0)


def solo(C, s, own):
    """A fresh actor alone, without faults: everything that is left can be taken over."""
    C2 = NS(**C.__dict__)
    C2.ops = {**C.ops, 9: "overwrite"}
    n = len(s.A)
    s = s._replace(A=s.A + (blank(own, "start" if own else "poll"),), f=0, c=0, t=0, pool=())
    for _ in range(60):
        if s.A[n].pc == "done":
            return s
        nxt = next(successors(C2, s, n), None)
        if nxt is None:
            return s
        s = nxt[1]
    return s


def check(C, s):
    """Invariants of a state; of the end, if it is one."""
    one = (
        C.single and s.F is not None and C.np[s.F] == 1 and s.P[0] is not None and C.np[s.P[0]] == 1 and s.P[1] is None
    )
    if C.glob and s.M and not whole(C, s.F, s.P) and s.F is not None and not one:
        return "I2s: marker over a mixture"
    if any(a.res == "MIXED" for a in s.A):
        return "I2: reader returned a mixture"
    if s.pool or any(a.pc not in ("done", "dead") for a in s.A):
        return None
    W = [a for a in s.A if a.own in C.ops]
    if all(C.ops[a.own] == "create" for a in W) and not C.old:
        if sum(a.ack for a in W) > 1:
            return "I3: two creates succeeded"
        if C.faults == C.crashes == 0 and sum(a.ack for a in W) != 1:
            return "I3: no create succeeded"
    end = solo(C, s, 0)
    if end.A[-1].pc != "done":
        return "I4: clean does not end"
    over = solo(C, s, 9)
    if over.A[-1].res != "ok" or not over.M or not whole(C, over.F, over.P) or over.F != 9:
        return f"I4: overwrite is blocked ({over.A[-1].pc} {over.A[-1].res})"
    M, F, P = end.M, end.F, end.P
    acked = {a.own for a in W if a.ack}
    deletes = {w for w in C.ops if C.ops[w] == "delete"}
    if M:
        if F is None:
            return "I5: marker without manifest" if C.strictM else None
        if not whole(C, F, P, False):
            return "I1/I5: marker over a broken dataset"
        if not whole(C, F, P):
            return "I2g: strays beside a dataset"
        if F == 0 and acked:
            return "I1: the old dataset is back after an acknowledged write"
        if F in (1, 2):
            a1 = next(a for a in W if a.own == F)
            for b in W:
                if b is not a1 and b.ack and b.sa and b.sa[s.A.index(a1)]:
                    return f"I1: {F} is back after {b.own} was acknowledged"
    else:
        left = {a.own for a in W if a.pc == "dead" or a.res not in ("ok",)}
        if acked - deletes and not (deletes & (acked | left)):
            return "I1: an acknowledged dataset is unreadable"
        if C.old and not deletes:
            return "I5: neither old nor new is there"
    return None


def start(C):
    acts = [blank(w, "start" if w else "poll")._replace(again=g) for w, g in zip(C.own, C.again)]
    if C.reader:
        acts.append(blank(0, "r0")._replace(own=-1))
    U = frozenset(
        (w, i) for w in C.own if w and C.ops[w] != "delete" for i in range(C.np[w]) if not inline(C, w, i)
    ) - set(C.lost)
    P = tuple(0 if C.old and i < C.np[0] else None for i in range(2))
    return S(
        None,
        1 if C.old else 0,
        0 if C.old else None,
        P,
        U,
        (),
        tuple(acts),
        C.faults,
        C.crashes,
        C.takeovers,
        1 if C.genM else 0,
    )


def explore(C, limit=None, stop_first=True):
    C.strictM = getattr(C, "strictM", 0)
    s0 = start(C)
    seen = {s0: None}
    q = deque([s0])
    found = {}
    t0 = time.time()
    full = True
    while q:
        s = q.popleft()
        bad = check(C, s)
        if bad and bad not in found:
            path, x = [], s
            while seen[x]:
                path.append(seen[x][0])
                x = seen[x][1]
            found[bad] = path[::-1]
            if stop_first:
                break
        if bad:
            continue
        last = True
        for label, t in successors(C, s):
            last = False
            if t not in seen:
                seen[t] = (label, s)
                q.append(t)
        if last and any(a.pc not in ("done", "dead") for a in s.A):
            found.setdefault("I4: deadlock " + " ".join(a.pc for a in s.A), [])
        if len(seen) > C.cap:
            full = False
            break
    return len(seen), full and not (stop_first and found), found, time.time() - t0


def report(name, C, stop_first=True, show=True):
    n, full, found, sec = explore(C, stop_first=stop_first)
    print(
        f"## {name}: {n} states, {'complete' if full else 'stopped'}, {sec:.0f} s: "
        + ("; ".join(found) or "no violation"),
        flush=True,
    )
    if show:
        for bad, path in found.items():
            print(f"   {bad}:")
            [print("     ", p) for p in path]
    return found
