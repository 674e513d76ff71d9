package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// op is an operation of client c of session "s<c>" on the lock "n".
func op(c int, verb Verb, call, ret int64, outcome Outcome, with ...func(*Op)) Op {
	o := Op{Name: "n", Session: "s" + string(rune('0'+c)), Client: c, Verb: verb, Call: call, Return: ret, Outcome: outcome}
	for _, f := range with {
		f(&o)
	}
	return o
}

// of says which hold it is about, and the count after it.
func of(hold string, token uint64, count int) func(*Op) {
	return func(o *Op) { o.Hold, o.Owner, o.Token, o.Count = hold, "owner-"+hold, token, count }
}

func validAt(at int64) func(*Op) { return func(o *Op) { o.ValidAt, o.Until = at, at+100 } }
func lostAt(at int64) func(*Op)  { return func(o *Op) { o.LostAt = at } }
func session(s string) func(*Op) { return func(o *Op) { o.Session = s } }
func ghost(o *Op)                { o.Ghost = true }

// handoff says that the hold follows another of the same owner in Redis.
func handoff(owner string) func(*Op) {
	return func(o *Op) { o.Owner, o.Handoff = owner, true }
}

var mutexHistories = []struct {
	name string
	good bool
	ops  []Op
	mod  func(*Mutex)
}{
	{"nothing", true, nil, nil},
	{"one after the other", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Done, of("a", 5, 0)),
		op(2, TryLock, 40, 50, Done, of("b", 6, 1)), op(2, Unlock, 60, 70, Done, of("b", 6, 0)),
	}, nil},
	{"a wait that ends within the Unlock of the other", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Done, of("a", 5, 0)),
		op(2, Lock, 5, 21, Done, of("b", 6, 1)),
	}, nil},
	{"double grant", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(2, Lock, 5, 19, Done, of("b", 6, 1)),
		op(1, Unlock, 20, 30, Done, of("a", 5, 0)),
	}, nil},
	{"double grant without tokens", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 0, 1)), op(2, Lock, 5, 19, Done, of("b", 0, 1)),
		op(1, Unlock, 20, 30, Done, of("a", 0, 0)), op(2, Unlock, 20, 30, Done, of("b", 0, 0)),
	}, nil},
	{"token falls", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Done, of("a", 5, 0)),
		op(2, Lock, 40, 50, Done, of("b", 4, 1)),
	}, nil},
	{"token twice", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Done, of("a", 5, 0)),
		op(2, Lock, 40, 50, Done, of("b", 5, 1)),
	}, nil},
	{"tokens tell the order of grants that overlap", true, []Op{
		op(1, Lock, 0, 50, Done, of("a", 6, 1)), op(1, Unlock, 60, 70, Done, of("a", 6, 0)),
		op(2, Lock, 0, 10, Done, of("b", 5, 1)), op(2, Unlock, 20, 30, Done, of("b", 5, 0)),
	}, nil},
	{"nested, the outer one given back first", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Nested, 11, 12, Done, of("a", 5, 2)),
		op(1, Nested, 13, 14, Done, of("a", 5, 3)), op(1, Unlock, 15, 16, Done, of("a", 5, 2)),
		op(1, Unlock, 17, 18, Unknown, of("a", 5, 1)), op(1, Unlock, 19, 20, Done, of("a", 5, 0)),
		op(2, Lock, 0, 30, Done, of("b", 6, 1)),
	}, nil},
	{"nested at the same time", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)),
		op(1, Nested, 11, 20, Done, of("a", 5, 3)), op(3, Nested, 11, 20, Done, of("a", 5, 2)),
		op(1, Unlock, 21, 30, Done, of("a", 5, 1)), op(3, Unlock, 21, 30, Done, of("a", 5, 2)), op(1, Unlock, 31, 40, Done, of("a", 5, 0)),
	}, nil},
	{"count too large", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Nested, 11, 12, Done, of("a", 5, 3)),
	}, nil},
	{"count does not move", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Nested, 11, 12, Done, of("a", 5, 2)), op(1, Nested, 13, 14, Done, of("a", 5, 2)),
	}, nil},
	{"count of an Unlock", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Nested, 11, 12, Done, of("a", 5, 2)), op(1, Unlock, 13, 14, Done, of("a", 5, 0)),
	}, nil},
	{"nested with a new token", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Nested, 11, 12, Done, of("a", 6, 2)),
	}, nil},
	{"nested in another's hold", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 15, 30, Done, of("a", 5, 0)),
		op(2, Lock, 40, 50, Done, of("b", 6, 1)), op(1, Nested, 60, 70, Done, of("a", 6, 2)),
	}, nil},
	{"free while a nested hold is left", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Nested, 11, 12, Done, of("a", 5, 2)), op(1, Unlock, 13, 14, Done, of("a", 5, 1)),
		op(2, Lock, 15, 16, Done, of("b", 6, 1)), op(1, Unlock, 17, 18, Done, of("a", 5, 0)),
	}, nil},
	{"Unlock of another's", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(2, Unlock, 20, 30, Done, of("b", 5, 0)),
	}, nil},
	{"Unlock twice", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Done, of("a", 5, 0)), op(1, Unlock, 40, 50, Done, of("a", 5, 0)),
	}, nil},
	{"Unlock of what was given to somebody else", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(2, Lock, 20, 30, Done, of("b", 6, 1)), op(1, Unlock, 40, 50, Done, of("a", 5, 0)),
	}, nil},
	{"refused while taken", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Done, of("a", 5, 0)), op(2, TryLock, 29, 40, Refused),
	}, nil},
	{"refused though free, before", false, []Op{
		op(2, TryLock, 0, 9, Refused), op(1, Lock, 10, 15, Done, of("a", 5, 1)),
	}, nil},
	{"refused though free, after", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Done, of("a", 5, 0)), op(2, TryLock, 31, 40, Refused),
	}, nil},
	{"refused for an attempt of unknown outcome", true, []Op{
		op(1, Lock, 0, 10, Unknown, ghost), op(2, TryLock, 31, 40, Refused),
	}, nil},
	{"refused before the attempt of unknown outcome", false, []Op{
		op(1, Lock, 40, 50, Unknown, ghost), op(2, TryLock, 31, 39, Refused),
	}, nil},
	{"refused since its session queues", true, []Op{
		op(1, Lock, 0, 40, Done, of("a", 5, 1)), op(3, Lock, 1, 2, Refused, session("s1"), func(o *Op) { o.Excuse = "" }),
	}, nil},
	{"refused since another session queues", false, []Op{
		op(1, Lock, 3, 40, Done, of("a", 5, 1)), op(2, TryLock, 0, 2, Refused),
	}, nil},
	{"refused by the server's record", true, []Op{
		op(2, TryLock, 31, 40, Refused),
	}, func(m *Mutex) { m.Taken = func(_ string, from, to int64) bool { return from == 31 && to == 40 } }},
	{"refused against the server's record", false, []Op{
		op(1, Lock, 0, 10, Unknown, ghost), op(2, TryLock, 31, 40, Refused),
	}, func(m *Mutex) { m.Taken = func(string, int64, int64) bool { return false } }},
	{"Unlock of unknown outcome, done later", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Unknown, of("a", 5, 0)),
		op(2, TryLock, 40, 50, Refused), op(2, Lock, 60, 70, Done, of("b", 6, 1)),
	}, nil},
	{"Unlock of unknown outcome, never done", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Unknown, of("a", 5, 0)), op(2, TryLock, 40, 50, Refused),
	}, nil},
	{"granted before the Unlock of unknown outcome", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Unknown, of("a", 5, 0)), op(2, Lock, 12, 19, Done, of("b", 6, 1)),
	}, nil},
	{"taken after a loss", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(10)), op(2, Lock, 12, 60, Done, of("b", 6, 1)),
		op(1, Unlock, 70, 80, Lost, of("a", 5, 0), validAt(50), lostAt(65)),
	}, nil},
	{"taken before the lease was seen valid", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(10)), op(2, Lock, 12, 60, Done, of("b", 6, 1)),
		op(1, Unlock, 70, 80, Lost, of("a", 5, 0), validAt(61), lostAt(65)),
	}, nil},
	{"nested after a loss was known", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(10)), op(1, Unlock, 70, 80, Lost, of("a", 5, 0), lostAt(65)),
		op(1, Nested, 66, 68, Done, of("a", 5, 2)),
	}, nil},
	{"a nested lease is told of the loss too", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(10)), op(1, Nested, 11, 12, Done, of("a", 5, 2), validAt(12)),
		op(1, Nested, 19, 20, Lost, of("a", 5, 0), lostAt(18)), op(1, Unlock, 21, 22, Lost, of("a", 5, 0), lostAt(18)),
		op(1, Unlock, 23, 24, Lost, of("a", 5, 0), lostAt(18)), op(2, Lock, 17, 21, Done, of("b", 6, 1)),
	}, nil},
	{"a holder that was never heard of again", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(10)), op(2, Lock, 100, 200, Done, of("b", 6, 1)),
	}, nil},
	{"a handoff", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Done, of("a", 5, 0)),
		op(3, Lock, 5, 25, Done, of("b", 6, 1), handoff("owner-a")),
	}, nil},
	{"a handoff too early", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(1, Unlock, 20, 30, Done, of("a", 5, 0)),
		op(3, Lock, 5, 15, Done, of("b", 6, 1), handoff("owner-a")),
	}, nil},
	{"removed by force", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(10)), op(9, Force, 20, 30, Done),
		op(2, Lock, 31, 40, Done, of("b", 7, 1)), op(3, Lock, 1, 45, Done, of("c", 6, 1), handoff("owner-a")),
		op(1, Unlock, 41, 45, Done, of("a", 5, 0)), op(3, Unlock, 60, 70, Lost, of("c", 6, 0), lostAt(55)),
		op(2, Unlock, 80, 90, Done, of("b", 7, 0)),
	}, nil},
	{"refused by a session that does not know yet", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(10)), op(9, Force, 20, 30, Done),
		op(4, TryLock, 40, 50, Refused, session("s1")), op(1, Unlock, 61, 65, Lost, of("a", 5, 0), lostAt(55)),
	}, func(m *Mutex) { m.Taken = func(string, int64, int64) bool { return false } }},
	{"refused by a session that knows", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(10)), op(9, Force, 20, 30, Done),
		op(4, TryLock, 56+int64(untoldFor), 60+int64(untoldFor), Refused, session("s1")), op(1, Unlock, 61, 65, Lost, of("a", 5, 0), lostAt(55)),
	}, func(m *Mutex) { m.Taken = func(string, int64, int64) bool { return false } }},
	{"taken before it was removed by force", false, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1), validAt(18)), op(9, Force, 20, 30, Done), op(2, Lock, 11, 19, Done, of("b", 6, 1)),
		op(1, Unlock, 41, 50, Lost, of("a", 5, 0), lostAt(42), validAt(20)),
	}, nil},
	{"an error that cannot be", false, []Op{op(1, Lock, 0, 10, Failed)}, nil},
	{"names are apart", true, []Op{
		op(1, Lock, 0, 10, Done, of("a", 5, 1)), op(2, Lock, 5, 19, Done, of("b", 5, 1), func(o *Op) { o.Name = "m" }),
	}, nil},
}

func TestMutex(t *testing.T) {
	for _, h := range mutexHistories {
		t.Run(h.name, func(t *testing.T) {
			m := Mutex{}
			if h.mod != nil {
				h.mod(&m)
			}
			err := Check(m, h.ops, time.Minute)
			if h.good {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			t.Log(err)
		})
	}
}

// A long good history with one operation turned bad is found, wherever it is.
func TestMutex_oneBadOperationAmongMany(t *testing.T) {
	const n = 800
	good := func() []Op {
		var ops []Op
		for i := range int64(n) {
			hold := "h" + time.Duration(i).String()
			ops = append(ops,
				op(int(i%8), Lock, 10*i-200, 10*i+1, Done, of(hold, uint64(i+1), 1)),
				op(int(i%8), Nested, 10*i+2, 10*i+3, Done, of(hold, uint64(i+1), 2)),
				op(int(i%8), Unlock, 10*i+4, 10*i+5, Done, of(hold, uint64(i+1), 1)),
				op(int(i%8), Unlock, 10*i+6, 10*i+8, Done, of(hold, uint64(i+1), 0)))
		}
		return ops
	}
	require.NoError(t, Check(Mutex{}, good(), time.Minute))
	for _, at := range []int{0, n / 2, n - 2} {
		for name, spoil := range map[string]func(ops []Op){
			"token":      func(ops []Op) { ops[4*at+4].Token = ops[4*at].Token },
			"count":      func(ops []Op) { ops[4*at+1].Count = 3 },
			"early":      func(ops []Op) { ops[4*at+4].Return = ops[4*at+3].Call - 1 },
			"late":       func(ops []Op) { ops[4*at+3].Call, ops[4*at+3].Return = ops[4*at+4].Return+1, ops[4*at+4].Return+2 },
			"not unlock": func(ops []Op) { ops[4*at+3].Hold = "nobody" },
		} {
			ops := good()
			spoil(ops)
			require.ErrorContains(t, Check(Mutex{}, ops, time.Minute), "is possible", "%s at %d", name, at)
		}
	}
}
