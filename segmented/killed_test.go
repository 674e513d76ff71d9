package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
	"github.com/holdfast-go/holdfast/segmented"
)

const (
	killedBuckets = 4
	killedUnits   = 8 // two in each bucket
	killedAdds    = 7
)

// killedMover makes one call in a process of its own, in the midst of which it is
// killed.
func killedMover() {
	s := childStock()
	ctx := context.Background()
	redistest.Say("ready")
	<-redistest.Listen()
	var err error
	switch os.Getenv("CALL") {
	case "init":
		err = s.Init(ctx, killedUnits)
	case "reserve": // more than two buckets have
		_, err = s.Reserve(ctx, segmented.Order{ID: idsOf(1, killedBuckets, 1)[0], Qty: 5, Window: 300 * time.Millisecond})
	case "resize":
		err = s.Resize(ctx, 1)
	case "add":
		err = s.Add(ctx, segmented.Delivery{ID: "d", Qty: killedAdds})
	case "sweep":
		_, err = s.Sweep(ctx)
	}
	redistest.Say("not killed: %v", err)
	select {}
}

// A step is the way of a script: the process is killed when it was sent and not
// executed, or when it was executed and not answered.
type step struct {
	script  *scripts.Script
	request bool
}

func (s step) String() string {
	if s.request {
		return "before " + s.script.Name()
	}
	return "after " + s.script.Name()
}

// Whoever moves units may die at any step. Others finish what it began, and a copy
// of its last command that comes long after changes nothing.
func TestKilled_atWhateverStepAllUnitsAreSold(t *testing.T) {
	after, before := func(s *scripts.Script) step { return step{s, false} }, func(s *scripts.Script) step { return step{s, true} }
	give, take, arrived := scripts.StockGive, scripts.StockTake, scripts.StockArrived
	b := breakable(t)
	for call, steps := range map[string][][]step{ // the last of each is that of its death
		"init": {
			{after(scripts.StockInit)},
			{before(scripts.StockBucket)},
			{after(scripts.StockBucket)},
			{before(scripts.StockOpen)},
			{after(scripts.StockOpen)},
		},
		"reserve": {
			{before(give)},
			{after(give)},
			{after(give), before(scripts.StockReserve)},
			{after(give), after(scripts.StockReserve)},
			{before(arrived)},
			{after(arrived)},
		},
		"resize": {
			{before(scripts.StockResize)},
			{after(scripts.StockResize)},
			{before(give)},
			{after(give)},
			{before(take)},
			{after(take)},
			{before(arrived)},
			{after(arrived)},
		},
		"add": {
			{before(scripts.StockAdd)},
			{after(scripts.StockAdd)},
			{before(give)},
			{after(give)},
			{before(take)},
			{after(take)},
			{before(arrived)},
		},
		"sweep": { // of what another left
			{before(take)},
			{after(take)},
			{before(arrived)},
		},
	} {
		for i, way := range steps {
			t.Run(fmt.Sprint(call, " ", way[len(way)-1]), func(t *testing.T) { killedAt(t, b, fmt.Sprint(call, i), call, way) })
		}
	}
}

func killedAt(t *testing.T, b *broken, name, call string, way []step) {
	s := openStock(t, session(t, b.Addr()), name, segmented.StockOptions{Buckets: killedBuckets})
	if call != "init" {
		require.NoError(t, s.Init(t.Context(), killedUnits))
	}
	if call == "sweep" { // as if somebody had died before
		for _, from := range []string{"0", "2"} {
			id := b.Do(t, "HGET", "holdfast_stock:{"+name+"}", "id")
			var keys []string
			for _, part := range []string{"units", "orders", "ends", "forget", "expired", "buyers"} {
				keys = append(keys, "holdfast_stock_"+part+":{"+name+":"+from+"}")
			}
			b.Do(t, append(append([]string{"EVAL", scripts.StockGive.Text(), "6"}, keys...), id, "c", "PUBLISH", "1000", "3", "1", "1", from, "0")...)
		}
	}
	child := redistest.Child(t, "killed mover", "ADDR="+b.proxy.Addr(), "NAME="+name, "CALL="+call, fmt.Sprint("BUCKETS=", killedBuckets))
	child.Line("ready", 20*time.Second)
	var holds []interface {
		Held() <-chan struct{}
		Release()
	}
	for i, at := range way {
		if at.request {
			holds = append(holds, b.proxy.HoldRequest(sha(t, b.Server, at.script)))
		} else {
			holds = append(holds, b.proxy.HoldReply(sha(t, b.Server, at.script)))
		}
		if i == 0 {
			child.Send("go")
		} else {
			holds[i-1].Release()
		}
		select {
		case <-holds[i].Held():
		case <-time.After(20 * time.Second):
			t.Fatal("the child does not come to ", at)
		}
	}
	child.Kill()
	began := time.Now()

	total := int64(killedUnits)
	switch call {
	case "init":
		require.NoError(t, s.Init(t.Context(), killedUnits))
	case "add":
		require.NoError(t, s.Add(t.Context(), segmented.Delivery{ID: "d", Qty: killedAdds}), "somebody else calls again")
		total += killedAdds
	}
	v, err := s.View(t.Context())
	require.NoError(t, err)
	require.Zero(t, v.Unaccounted(), "%+v", v)
	require.Equal(t, total, v.Added)

	// All of it is sold, as soon as the order of who was killed is over.
	for n, sold := 0, int64(0); sold < total; n++ {
		id := fmt.Sprint("rest", n)
		_, err := s.Reserve(t.Context(), segmented.Order{ID: id, Qty: 1})
		if errors.Is(err, segmented.ErrSoldOut) && time.Since(began) < 20*time.Second {
			v, err := s.View(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, "reserve", call, "%+v", v)
			time.Sleep(20 * time.Millisecond)
			continue
		}
		require.NoError(t, err)
		_, err = s.Confirm(t.Context(), id)
		require.NoError(t, err)
		sold++
	}
	requireSoldOut(t, s, total)
	// Its last command was only long under way, and arrives now.
	calls := b.Calls(t)
	holds[len(holds)-1].Release()
	if way[len(way)-1].request {
		redistest.Eventually(t, 10*time.Second, "the late copy arrives", func() bool { return b.Calls(t).Since(calls).Scripts() > 0 })
	}
	requireSoldOut(t, s, total)
	_, err = s.Reserve(t.Context(), segmented.Order{ID: "last", Qty: 1})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
}
