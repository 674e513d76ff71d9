package holdfast_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testsByName are all tests of all modules: the packages of each one.
func testsByName(t *testing.T) map[string][]string {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	packages := map[string][]string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.Base(filepath.Dir(path))
		if name == "." {
			name = "holdfast"
		}
		for _, test := range declared.FindAllSubmatch(text, -1) {
			packages[string(test[1])] = append(packages[string(test[1])], name)
		}
		return nil
	}))
	return packages
}

// What the documents say is shown by a test, and the test is there.
func TestDocs_nameTestsThatExist(t *testing.T) {
	tests := testsByName(t)
	documents, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, documents)
	named := regexp.MustCompile("`(?:([a-z]+)\\.)?(Test\\w+)`")
	for _, path := range documents {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range named.FindAllStringSubmatch(string(text), -1) {
			in := tests[name[2]]
			require.NotEmpty(t, in, "%s names %s", path, name[0])
			if name[1] != "" {
				require.Contains(t, in, name[1], "%s names %s", path, name[0])
			}
		}
	}
}

// Each number of the list in docs/redisson.md is in a test's name, and none of
// Redisson's tests of these locks is missing in the list.
func TestDocs_eachNumberOfRedissonsListHasATest(t *testing.T) {
	text, err := os.ReadFile("docs/redisson.md")
	require.NoError(t, err)
	_, list, found := strings.Cut(string(text), "\n## The list, by number\n")
	require.True(t, found)
	var numbers []string
	for _, number := range regexp.MustCompile(`\b[A-Z]+-\d\d\b`).FindAllString(list, -1) {
		numbers = append(numbers, strings.ReplaceAll(number, "-", ""))
	}
	for kind, last := range map[string]int{"L": 27, "WD": 5, "HV": 2, "FE": 1, "RW": 26, "FO": 2} {
		for n := 1; n <= last; n++ {
			require.Contains(t, numbers, fmt.Sprintf("%s%02d", kind, n))
		}
	}
	tests := testsByName(t)
	for _, number := range numbers {
		has := false
		for name := range tests {
			has = has || slices.Contains(strings.Split(name, "_"), number)
		}
		require.True(t, has, "no test has %s in its name", number)
	}
}
