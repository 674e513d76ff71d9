package history

import (
	"cmp"
	"fmt"
	"slices"
)

// An Interval is a time in which a hold was live for its callers, from when they
// were told of it up to when its last lease was given back or ended.
type Interval struct {
	Name     string
	Hold     string
	Owner    string
	From, To int64 // To is not part of it
	Weight   int   // of the lock's capacity, 1 for all of an exclusive lock
	Lost     bool
}

// Live returns the intervals of the holds in a history. A hold that was lost ends
// when its process knew, or at the end of its lease as last seen, if that is
// earlier: a timer may be late, Valid is not. If the loss was found by the last
// Unlock it ends with that call, as it does without a loss.
func Live(ops []Op) []Interval {
	byHold := map[string]*Interval{}
	until, unlock := map[string]int64{}, map[string]int64{}
	var order []*Interval
	sorted := slices.Clone(ops)
	byCall(sorted)
	for i := range sorted {
		op := &sorted[i]
		if op.Hold == "" {
			continue
		}
		v := byHold[op.Hold]
		if v == nil {
			v = &Interval{Name: op.Name, Hold: op.Hold, Owner: op.Owner, To: Never, Weight: 1}
			byHold[op.Hold] = v
			order = append(order, v)
		}
		until[op.Hold] = max(until[op.Hold], op.Until)
		if op.Verb == Unlock || op.Verb == Downgrade {
			unlock[op.Hold] = op.Call
		}
		switch {
		case op.Outcome == Lost:
			v.Lost = true
			v.To = min(v.To, op.LostAt)
		case op.Verb == Unlock && op.Count == 0, op.Verb == Downgrade:
			v.To = min(v.To, op.Call)
		case op.Outcome == Done && (op.Verb == Lock || op.Verb == TryLock):
			v.From, v.Owner = op.Return, op.Owner
		}
	}
	live := make([]Interval, 0, len(order))
	for _, v := range order {
		if v.Lost || v.To == Never {
			v.To = min(v.To, until[v.Hold])
		}
		if v.Lost && unlock[v.Hold] > 0 {
			v.To = min(v.To, unlock[v.Hold])
		}
		if v.From < v.To {
			live = append(live, *v)
		}
	}
	return live
}

// Oracle reports an error where the weights of the intervals of one lock sum up to
// more than capacity.
func Oracle(live []Interval, capacity int) error {
	type edge struct {
		at    int64
		begin bool
		v     *Interval
	}
	edges := make([]edge, 0, 2*len(live))
	for i := range live {
		v := &live[i]
		edges = append(edges, edge{v.From, true, v}, edge{v.To, false, v})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at == b.at && a.begin != b.begin { // ends come first
			if b.begin {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.at, b.at)
	})
	inside := map[string]map[*Interval]bool{}
	weight := map[string]int{}
	for _, e := range edges {
		now := inside[e.v.Name]
		if !e.begin {
			delete(now, e.v)
			weight[e.v.Name] -= e.v.Weight
			continue
		}
		if weight[e.v.Name] += e.v.Weight; weight[e.v.Name] > capacity {
			text := fmt.Sprintf("%s: more than %d at %s:\n  %s", e.v.Name, capacity, micros(e.at), e.v)
			for other := range now {
				text += "\n  " + other.String()
			}
			return fmt.Errorf("%s", text)
		}
		if now == nil {
			now = map[*Interval]bool{}
			inside[e.v.Name] = now
		}
		now[e.v] = true
	}
	return nil
}

// String shows the interval in one line.
func (v *Interval) String() string {
	text := fmt.Sprintf("[%s %s] %s", micros(v.From), micros(v.To), v.Hold)
	if v.Lost {
		text += " lost"
	}
	return text
}
