package core_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
)

// A crowd are callers of one Combiner whose contexts may end at any time.
type crowd struct {
	*tower
	combiner *core.Combiner
	begun    int
	alone    []*flight // those that found room
}

func newCrowd(t *testing.T, timeout time.Duration) *crowd {
	t.Helper()
	w := newTower(t, redistest.Run(t).Client(t))
	c := &crowd{tower: w, combiner: w.env.NewCombiner(w.batch, 4, timeout)}
	c.combiner.Bound(time.Hour)
	for range core.BroadRoom { // takes all the room
		c.call(t.Context())
		c.alone = append(c.alone, c.next())
	}
	return c
}

// call begins one call: its answer and how it can be called away.
func (c *crowd) call(ctx context.Context) (chan answer, context.CancelFunc) {
	c.Helper()
	ctx, cancel := context.WithCancel(ctx)
	i, got, before := c.begun, make(chan answer, 1), c.combiner.Waiting()
	c.begun++
	c.asking.Go(func() {
		reply, err := c.combiner.Run(ctx, []string{keyOf(i)}, []string{argOf(i)})
		text := ""
		if err == nil {
			text, err = reply.ToString()
		}
		got <- answer{text, err}
	})
	if i >= core.BroadRoom {
		require.Eventually(c, func() bool { return c.combiner.Waiting() != before }, patience, time.Millisecond/4)
	}
	return got, cancel
}

func TestCombiner_whoLeavesBeforeItIsSentIsNotSent(t *testing.T) {
	c := newCrowd(t, time.Minute)
	stays, _ := c.call(t.Context())
	leaves, cancel := c.call(t.Context())
	also, _ := c.call(t.Context())
	cancel()
	require.Equal(t, fault.NotExecuted, fault.ClassOf(core.Fail((<-leaves).err)))
	require.Equal(t, 2, c.combiner.Waiting())
	c.land(c.alone[:1])
	f := c.next()
	require.Equal(t, []string{"key2", "key4"}, f.keys)
	c.land([]*flight{f})
	require.Equal(t, answer{text: "key2=arg2"}, <-stays)
	require.Equal(t, answer{text: "key4=arg4"}, <-also)
}

// Whoever leaves takes nobody along, not even if it was the first of them.
func TestCombiner_whoLeavesMeanwhileLeavesTheOthersAlone(t *testing.T) {
	for leaver := range 3 {
		t.Run(fmt.Sprint(leaver), func(t *testing.T) {
			c := newCrowd(t, time.Minute)
			var answers []chan answer
			var cancels []context.CancelFunc
			for range 3 {
				a, cancel := c.call(t.Context())
				answers, cancels = append(answers, a), append(cancels, cancel)
			}
			c.land(c.alone[:1])
			f := c.next()
			cancels[leaver]()
			require.ErrorIs(t, (<-answers[leaver]).err, context.Canceled, "while the command is under way")
			require.NoError(t, f.ctx.Err())
			c.land([]*flight{f})
			for i, a := range answers {
				if i != leaver {
					require.Equal(t, answer{text: keyOf(i+2) + "=" + argOf(i+2)}, <-a)
				}
			}
		})
	}
}

func TestCombiner_aCommandIsBoundedAndHasNoMoreCallsThanMayBe(t *testing.T) {
	c := newCrowd(t, time.Minute)
	for range 6 {
		c.call(t.Context())
	}
	c.land(c.alone[:1])
	f := c.next()
	require.Len(t, f.keys, 4)
	end, bounded := f.ctx.Deadline()
	require.True(t, bounded)
	require.WithinDuration(t, time.Now().Add(time.Minute), end, 10*time.Second)
	c.land([]*flight{f})
	require.Len(t, c.next().keys, 2)
}

// A joint batch is one script that takes many runs itself.
func TestCombiner_ofAJointBatch(t *testing.T) {
	client := redistest.Run(t).Client(t)
	keys := []string{"{s}1", "{s}2", "{s}3", "{s}4", "{s}5", "{s}6"}
	require.NoError(t, scripts.StockBucket.Exec(t.Context(), client, keys[:1], []string{"id", "3", "0", "9999999999999", "0"}).Error())
	args := func(order string) []string {
		return []string{"id", "channel", "PUBLISH", "600000", "", order, "2", "60000", "", "r"}
	}
	batch := scripts.StockReserveBatch
	one, err := batch.Run(t.Context(), client, keys, args("a"))
	require.NoError(t, err)
	require.True(t, one.IsInt64(), "it got its units")
	replies, err := batch.Exec(t.Context(), client, []scripts.Call{{Keys: keys, Args: args("a")}, {Keys: keys, Args: args("b")}})
	require.NoError(t, err)
	require.Equal(t, []string{"ok", "soldout"}, []string{word(t, replies[0]), word(t, replies[1])})
	_, err = batch.Run(t.Context(), client, []string{"{t}1", "{t}2", "{t}3", "{t}4", "{t}5", "{t}6"}, args("a"))
	require.ErrorContains(t, err, "NOSTOCK")
}

func word(t *testing.T, m rueidis.RedisMessage) string {
	t.Helper()
	list, err := m.ToArray()
	require.NoError(t, err)
	text, err := list[0].ToString()
	require.NoError(t, err)
	return text
}
