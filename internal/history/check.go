package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine" //nolint:depguard // only tests import this package
)

// A Model is what one lock of a kind does if calls come one after the other.
type Model interface {
	// Prepare makes the history of one lock ready: it gives open ends to what may
	// have had an effect later, adds what happened without anybody asking, and leaves
	// out what had no effect. The history is sorted by call.
	Prepare(ops []Op) []Op
	// Init is the state of a lock that was never used. States are comparable.
	Init() any
	// Step is the state after op, and whether op could have that outcome. It changes
	// neither.
	Step(state any, op *Op) (next any, ok bool)
}

// Check looks for an order of the operations of each lock that m allows. The error
// shows where there is none; a search that takes longer than limit is one too.
func Check(m Model, ops []Op, limit time.Duration) error {
	byName := map[string][]Op{}
	for _, op := range ops {
		if op.Outcome == Failed {
			return fmt.Errorf("an operation failed: %s", &op)
		}
		byName[op.Name] = append(byName[op.Name], op)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		history := byName[name]
		byCall(history)
		if err := check(m, m.Prepare(history), limit); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// A place is a state in the search, and the way to it.
type place struct {
	state  any
	op     *Op // the last
	before *place
	depth  int
}

func check(m Model, ops []Op, limit time.Duration) error {
	operations := make([]porcupine.Operation, len(ops))
	for i := range ops {
		op := &ops[i]
		operations[i] = porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: op.Return}
	}
	start := &place{state: m.Init()}
	var deepest atomic.Pointer[place] // a search that took too long still goes on
	deepest.Store(start)
	switch porcupine.CheckOperationsTimeout(porcupine.Model{
		Init:  func() any { return start },
		Equal: func(a, b any) bool { return a.(*place).state == b.(*place).state },
		Step: func(at, input, _ any) (bool, any) {
			from, op := at.(*place), input.(*Op)
			next, ok := m.Step(from.state, op)
			to := &place{next, op, from, from.depth + 1}
			if ok && to.depth > deepest.Load().depth {
				deepest.Store(to)
			}
			return ok, to
		},
	}, operations, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("no order of %d operations was found in %v\n%s", len(ops), limit, explain(ops, deepest.Load()))
	default:
		return fmt.Errorf("no order of %d operations is possible\n%s", len(ops), explain(ops, deepest.Load()))
	}
}

// explain shows where the longest order that was found gets stuck.
func explain(ops []Op, deepest *place) string {
	const around = 12
	var b strings.Builder
	in := map[*Op]bool{}
	var last []string
	for at := deepest; at.before != nil; at = at.before {
		in[at.op] = true
		if len(last) < around {
			last = append(last, at.op.String())
		}
	}
	slices.Reverse(last)
	fmt.Fprintf(&b, "%d operations are in order, the last of them\n  %s\nup to the state\n  %+v\nand none of these can be next:\n",
		deepest.depth, strings.Join(last, "\n  "), deepest.state)
	first := int64(Never) // the first return of those that are left: what begins later comes later
	for i := range ops {
		if !in[&ops[i]] {
			first = min(first, ops[i].Return)
		}
	}
	left := 0
	for i := range ops {
		if !in[&ops[i]] && ops[i].Call <= first {
			if left++; left <= 3*around {
				fmt.Fprintf(&b, "  %s\n", &ops[i])
			}
		}
	}
	if left > 3*around {
		fmt.Fprintf(&b, "  and %d more\n", left-3*around)
	}
	return b.String()
}
