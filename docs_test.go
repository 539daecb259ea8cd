package holdfast_test

import (
	"cmp"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport/transporttest"
)

// The page about guarantees says for each claim what checks it. That has to exist.
func TestTheGuaranteesAreCheckedByWhatTheyName(t *testing.T) {
	text := page(t, "docs/guarantees.md")
	rules := map[string]bool{}
	for _, rule := range transporttest.Rules() {
		rules[rule.Name] = true
	}
	found := regexp.MustCompile("`kit/([a-z-]+)`").FindAllStringSubmatch(text, -1)
	for _, rule := range found {
		if !rules[rule[1]] {
			t.Errorf("docs/guarantees.md names the rule %s, which the kit does not have", rule[1])
		}
	}
	tests := testsByFolder(t)
	named := regexp.MustCompile("`(\\w+)/(Test\\w{2,})`").FindAllStringSubmatch(text, -1)
	for _, test := range named {
		if !tests[test[1]+"/"+test[2]] {
			t.Errorf("docs/guarantees.md names the test %s of %s, which does not exist", test[2], test[1])
		}
	}
	if len(found) == 0 || len(named) == 0 {
		t.Errorf("%d rules and %d tests found in docs/guarantees.md", len(found), len(named))
	}
}

// The page about NServiceBus names a test for each cell of its table. It has to exist.
func TestTheMigrationPageNamesTestsThatExist(t *testing.T) {
	tests := testsByFolder(t)
	named := regexp.MustCompile("`(\\w+)/(Test\\w+)`").FindAllStringSubmatch(page(t, "docs/migrating-from-nservicebus.md"), -1)
	for _, test := range named {
		if !tests[test[1]+"/"+test[2]] {
			t.Errorf("docs/migrating-from-nservicebus.md names the test %s of %s, which does not exist", test[2], test[1])
		}
	}
	if len(named) < 40 {
		t.Errorf("%d tests are named", len(named))
	}
}

// The page about conformance names for each test of NServiceBus the rules and tests here. They have
// to exist, and no case is left out.
func TestTheConformanceTablesNameWhatThereIs(t *testing.T) {
	rules, tests := map[string]bool{}, testsByFolder(t)
	for _, rule := range transporttest.Rules() {
		rules[rule.Name] = true
	}
	cases := map[string]int{}
	for _, section := range strings.Split(page(t, "docs/conformance.md"), "\n## ") {
		heading, _, _ := strings.Cut(section, "\n")
		cases[heading] = casesIn(section)
		for _, rule := range regexp.MustCompile("`([a-z]+(?:-[a-z]+)+)`").FindAllStringSubmatch(section, -1) {
			if !rules[rule[1]] {
				t.Errorf("%s: the kit has no rule %s", heading, rule[1])
			}
		}
		folder := "endpoint"
		if other := regexp.MustCompile("without a package are in `(\\w+)`").FindStringSubmatch(section); other != nil {
			folder = other[1]
		}
		for _, test := range regexp.MustCompile("`(?:(\\w+)/)?(Test\\w{2,})`").FindAllStringSubmatch(section, -1) {
			if name := cmp.Or(test[1], folder) + "/" + test[2]; !tests[name] {
				t.Errorf("%s: there is no test %s", heading, name)
			}
		}
	}
	for heading, want := range map[string]int{
		"NServiceBus's pipeline tests": 29, "NServiceBus's recoverability tests": 40,
		"NServiceBus's tests of delayed delivery": 5, "Recoverability unit tests": 33, "NServiceBus's outbox tests": 12,
		"NServiceBus's saga tests": 52,
	} {
		if cases[heading] != want {
			t.Errorf("docs/conformance.md: %d cases under %q, want %d", cases[heading], heading, want)
		}
	}
}

// casesIn counts the cases in the tables of a section: a row is one, or as many as the number
// behind its first column says. A row with neither a test nor a remark is none.
func casesIn(section string) (cases int) {
	row := regexp.MustCompile(`(?m)^\|([^|(]*)(?:\((\d+)\) )?\|(.*)\|$`)
	for _, r := range row.FindAllStringSubmatch(section, -1) {
		if strings.HasPrefix(r[1], "---") || r[1] == " class " || r[1] == " case " || strings.Trim(r[3], " |") == "none" {
			continue
		}
		n, err := strconv.Atoi(r[2])
		if err != nil {
			n = 1
		}
		cases += n
	}
	return cases
}

var relativeLink = regexp.MustCompile(`\]\(([^)#:"\s]*)(?:#([^)\s]*))?\)`)

// Each relative link of a page leads to a file of this repository, and its anchor, if it has one,
// to a heading there.
func TestLinksOfTheDocsLeadSomewhere(t *testing.T) {
	links := 0
	for _, name := range pages(t) {
		text := inline.ReplaceAllString(fence.ReplaceAllString(page(t, name), ""), "")
		for _, link := range relativeLink.FindAllStringSubmatch(text, -1) {
			links++
			to := name
			if link[1] != "" {
				to = filepath.Join(filepath.Dir(name), link[1])
			}
			switch _, err := os.Stat(to); {
			case err != nil:
				t.Errorf("%s links to %s: %v", name, link[1], err)
			case link[2] != "" && !slices.Contains(anchors(page(t, to)), link[2]):
				t.Errorf("%s links to %s#%s, which no heading has", name, link[1], link[2])
			}
		}
	}
	if links < 200 {
		t.Errorf("%d links found", links)
	}
}

// The commands that pages name exist: targets of make, and scripts.
func TestCommandsOfTheDocsExist(t *testing.T) {
	makefile := page(t, "Makefile")
	named := 0
	for _, name := range pages(t) {
		text := page(t, name)
		if name == "CHANGELOG.md" {
			continue // it names commands of the past
		}
		for _, target := range regexp.MustCompile("(?m)(?:`|^)make ([a-z/-]+)").FindAllStringSubmatch(text, -1) {
			named++
			if !regexp.MustCompile(`(?m)^` + target[1] + `:`).MatchString(makefile) {
				t.Errorf("%s names make %s, which the Makefile does not have", name, target[1])
			}
		}
		for _, script := range regexp.MustCompile(`\bscripts/[\w-]+\.(?:sh|txt)`).FindAllString(text, -1) {
			named++
			if _, err := os.Stat(script); err != nil {
				t.Errorf("%s names %s: %v", name, script, err)
			}
		}
	}
	if named < 50 {
		t.Errorf("%d commands found", named)
	}
}

// pages returns the names of all pages for readers.
func pages(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{
		"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "bench/*.md", "internal/brokertest/*/*.md",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// anchors returns the anchors of a page's headings as GitHub names them: in lower case, with a
// hyphen for each space, and without other characters than letters, digits, hyphens and
// underscores. The anchor of a second heading of the same name ends in -1.
func anchors(text string) (names []string) {
	text = fence.ReplaceAllString(text, "")
	seen := map[string]int{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(heading[1])), " ", "-")
		name = regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(name, "")
		if n := seen[name]; n > 0 {
			names = append(names, name+"-"+strconv.Itoa(n))
		} else {
			names = append(names, name)
		}
		seen[name]++
	}
	return names
}

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// testsByFolder has "folder/TestName" for every test, by the last element of its folder.
func testsByFolder(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	for _, file := range testFiles(t) {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") {
				tests[path.Base(path.Dir(file.path))+"/"+f.Name.Name] = true
			}
		}
	}
	return tests
}

// The page on architecture names files: each has to exist, and every file of package endpoint and every package has to be named.
func TestTheArchitecturePageMatchesTheTree(t *testing.T) {
	text := page(t, "docs/architecture.md")
	files := goFiles(t)
	for _, named := range regexp.MustCompile("`([\\w/.-]+\\.go)`").FindAllStringSubmatch(text, -1) {
		if name := named[1]; !slices.ContainsFunc(files, func(f string) bool { return f == name || strings.HasSuffix(f, "/"+name) }) {
			t.Errorf("docs/architecture.md names %s, which does not exist", name)
		}
	}
	_, fileMap, _ := strings.Cut(text, "## File map")
	for _, f := range files {
		folder, name := path.Split(f)
		switch {
		case folder == "endpoint/" && !regexp.MustCompile("[`/]"+regexp.QuoteMeta(name)+"`").MatchString(fileMap):
			t.Errorf("docs/architecture.md: the file map leaves %s out", f)
		case !mapped(fileMap, path.Clean(folder)):
			t.Errorf("docs/architecture.md: the file map leaves the package %s out", folder)
		}
	}
}

// mapped reports whether the file map names a folder, or one above it other than endpoint and transport.
func mapped(fileMap, folder string) bool {
	for ; folder != "."; folder = path.Dir(folder) {
		if strings.Contains(fileMap, "`"+folder+"/") || strings.Contains(fileMap, "`"+folder+"`") {
			return true
		}
	}
	return false
}

// goFiles returns the Go files that are no tests, but those of test data.
func goFiles(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node"):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && strings.Contains(file, "/"):
			files = append(files, filepath.ToSlash(file))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
