package segmented_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/segmented"
)

// Processes of all versions have to agree on these for ever. They were computed by
// another program, from the description alone.
func TestHash_neverChanges(t *testing.T) {
	for _, c := range []struct {
		key   string
		hash  uint64
		of64  uint64
		of100 uint64
	}{
		{"", 17280346270528514342, 38, 42},
		{"a", 9413272369427828315, 27, 15},
		{"4711", 11447482023958097969, 49, 69},
		{"order-1", 5267876955464718757, 37, 57},
		{"order-2", 12306662310212246443, 43, 43},
		{"käse", 6860897491305255240, 8, 40},
		{strings.Repeat("x", 600), 3326965361390785306, 26, 6},
	} {
		require.Equal(t, c.hash, segmented.Hash(c.key), "%q", c.key)
		require.Equal(t, c.of64, segmented.Hash(c.key)%64, "%q", c.key)
		require.Equal(t, c.of100, segmented.Hash(c.key)%100, "%q", c.key)
	}
}

// ids are keys as programs have them.
var ids = map[string]func(i int) string{
	"sequential": func(i int) string { return fmt.Sprint(i) },
	"even":       func(i int) string { return fmt.Sprint(2 * i) },
	"padded":     func(i int) string { return fmt.Sprintf("order-%012d", i) },
	"hundreds":   func(i int) string { return fmt.Sprint(100 * i) },
	"random": func() func(int) string {
		r := rand.New(rand.NewPCG(4, 2))
		return func(int) string { return fmt.Sprintf("%016x", r.Uint64()) }
	}(),
}

func TestHash_spreadsKeysEvenly(t *testing.T) {
	const keys = 64_000
	for name, id := range ids {
		for _, n := range []int{2, 3, 10, 16, 64, 100, 128} {
			counts := make([]float64, n)
			for i := range keys {
				counts[segmented.Hash(id(i))%uint64(n)]++
			}
			mean, chi, busiest := float64(keys)/float64(n), 0.0, 0.0
			for _, c := range counts {
				chi += (c - mean) * (c - mean) / mean
				busiest = max(busiest, c)
			}
			// Of a random spread it is n-1, give or take its root times 1.4; one in a
			// million is 5 of these above.
			require.Less(t, chi, float64(n-1)+5*math.Sqrt(2*float64(n-1))+5, "%s over %d", name, n)
			require.LessOrEqual(t, busiest/mean, 1.3, "%s over %d", name, n)
		}
	}
}
