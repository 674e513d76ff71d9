package history

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

func TestMain(m *testing.M) {
	if redistest.Role() == "clock" {
		redistest.Say("%d", Now())
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
