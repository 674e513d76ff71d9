package history

import (
	"context"
	"sync"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/reentrant"
)

func TestRegister_theFence(t *testing.T) {
	r := &Register{Fence: true}
	_, err := r.Read(0)
	require.ErrorIs(t, err, ErrStale, "0 is no token")
	_, err = r.Read(5)
	require.NoError(t, err)
	require.NoError(t, r.Write(5, 1))
	value, err := r.Read(6)
	require.NoError(t, err)
	require.Equal(t, 1, value)
	require.ErrorIs(t, r.Write(5, 2), ErrStale, "since 6 has read")
	require.NoError(t, r.Write(6, 2))

	open := &Register{}
	require.NoError(t, open.Write(6, 1))
	require.NoError(t, open.Write(5, 2))
	value, err = open.Read(0)
	require.NoError(t, err)
	require.Equal(t, 2, value)
}

// Increments that nothing keeps apart are found to be lost.
func TestRegister_lostUpdatesAreCounted(t *testing.T) {
	srv := redistest.Run(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{srv.Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	hf, err := holdfast.New(client, holdfast.SessionOptions{Observer: Observer()})
	require.NoError(t, err)
	defer hf.Close(context.Background())
	for _, one := range []bool{true, false} {
		rec := &Recorder{}
		var clients []*Client
		var locks []Locker
		for i := range 2 {
			name := "one"
			if !one { // two locks guard nothing
				name = string(rune('a' + i))
			}
			l, err := reentrant.New(hf, name, holdfast.Options{})
			require.NoError(t, err)
			clients, locks = append(clients, rec.Client("s")), append(locks, l)
		}
		var both sync.WaitGroup
		both.Add(2)
		tally, err := (&Register{}).Increment(context.Background(), clients, locks, 1, func(int, int) {
			if both.Done(); !one {
				both.Wait()
			}
		})
		require.NoError(t, err)
		require.Equal(t, 2, tally.Done)
		if one {
			require.Zero(t, tally.Lost)
		} else {
			require.Equal(t, 1, tally.Lost)
		}
	}
}
