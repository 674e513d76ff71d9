package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/history"
	"github.com/holdfast-go/holdfast/segmented"
)

// outcome is what history says of an error.
func outcome(err error) (history.Outcome, string) {
	for want, reason := range map[error]string{
		segmented.ErrSoldOut: history.SoldOut, segmented.ErrExpired: history.Expired,
		segmented.ErrUnknownOrder: history.NoOrder, segmented.ErrConflict: history.TooMany,
	} {
		if errors.Is(err, want) {
			return history.Refused, reason
		}
	}
	var e *segmented.StockError
	switch {
	case err == nil:
		return history.Done, ""
	case errors.Is(err, segmented.ErrState) && errors.As(err, &e):
		return history.Refused, e.State.String()
	case errors.Is(err, holdfast.ErrUnknown), errors.Is(err, holdfast.ErrUnavailable):
		return history.Unknown, err.Error()
	}
	return history.Failed, err.Error()
}

// Callers of several processes, whose replies are lost now and then, buy the last
// units of many small stocks. What each saw has to fit into one order of events.
func TestHistory_aStockIsLinearizable(t *testing.T) {
	b := breakable(t)
	seed := uint64(time.Now().UnixNano())
	t.Log("seed ", seed)
	rounds := max(12, operations(t)/200)
	const callers, calls, units = 6, 7, 4
	const window = 6 * time.Millisecond
	var hfs []*holdfast.Session
	for range 3 {
		hfs = append(hfs, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 5 * time.Second}))
	}
	direct := session(t, b.Addr())
	b.proxy.DropReplies(0.02, rand.New(rand.NewPCG(seed, 0)))
	offset, apart := int64(0), int64(1<<62) // the server's clock is the machine's
	for range 20 {                          // of a few the one that nothing came between
		before, now := history.Now(), time.Now().UnixNano()
		if d := history.Now() - before; d < apart {
			offset, apart = before-now, d
		}
	}
	var all []history.Op
	unknown := 0
	for round := range rounds {
		name := fmt.Sprint("shoe", round)
		buckets := []int{1, 3}[round%2]
		require.NoError(t, openStock(t, direct, name, segmented.StockOptions{Buckets: buckets}).Init(t.Context(), units))
		var mu sync.Mutex
		var wg sync.WaitGroup
		for c := range callers {
			s := openStock(t, hfs[c%len(hfs)], name)
			r := rand.New(rand.NewPCG(seed+uint64(round), uint64(c)))
			wg.Go(func() {
				for range calls {
					ctx, cancel := context.Background(), context.CancelFunc(func() {})
					if r.IntN(10) == 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(1000))*time.Microsecond)
					}
					op := history.Op{Name: name, Session: fmt.Sprint(c % len(hfs)), Client: c, Hold: fmt.Sprint("o", r.IntN(6)), Call: history.Now()}
					var res segmented.Reservation
					var err error
					switch r.IntN(8) {
					case 0, 1, 2, 3:
						op.Verb, op.Count = history.Reserve, 1+int(op.Hold[1])%2
						res, err = s.Reserve(ctx, segmented.Order{ID: op.Hold, Qty: int64(op.Count), Window: window})
						op.Until = offset + res.Until.UnixNano()
					case 4, 5:
						op.Verb = history.Confirm
						_, err = s.Confirm(ctx, op.Hold)
					case 6:
						op.Verb = history.Cancel
						_, err = s.Cancel(ctx, op.Hold)
					default:
						op.Verb, op.Count, op.Owner = history.Refund, 1, "f"+op.Hold
						_, err = s.Refund(ctx, segmented.Refund{ID: op.Owner, Order: op.Hold, Qty: 1})
					}
					op.Return = history.Now()
					cancel()
					op.Outcome, op.Err = outcome(err)
					if op.Verb == history.Reserve && res.State == segmented.Sold {
						op.Until = 1 << 62 // it tells when it was sold
					}
					mu.Lock()
					all = append(all, op)
					if op.Outcome == history.Unknown {
						unknown++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	}
	b.proxy.DropReplies(0, nil)
	t.Logf("%d operations, %d of unknown outcome", len(all), unknown)
	require.NoError(t, history.Check(history.Stock{Units: units, Window: int64(window) - int64(2*time.Millisecond)}, all, time.Minute))
}
