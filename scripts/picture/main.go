// Command picture draws the pictures of README.md: the path of a message, and the badges. Run it at
// the root of the repository:
//
//	go run ./scripts/picture
//
// The output depends only on this program, go.mod and LICENSE, and a test compares it with the
// files in docs.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	files, err := draw(".")
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// draw returns the text of each picture by the name of its file, slash-separated, for the
// repository at root.
func draw(root string) (map[string]string, error) {
	version, err := find(filepath.Join(root, "go.mod"), `(?m)^go (\d+\.\d+)`)
	if err != nil {
		return nil, err
	}
	licence, err := find(filepath.Join(root, "LICENSE"), `^(\w+) License`)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"docs/message.svg":       message(),
		"docs/badge-go.svg":      badge("Go", version+" or later", "#0a6e8a"),
		"docs/badge-licence.svg": badge("licence", licence, "#2c6e49"),
	}, nil
}

// find returns the first group of a pattern in a file.
func find(name, pattern string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	match := regexp.MustCompile(pattern).FindSubmatch(text)
	if match == nil {
		return "", fmt.Errorf("%s: nothing matches %s", name, pattern)
	}
	return string(match[1]), nil
}

// badge returns a label with its value. A letter of its font is at most 7 wide.
func badge(label, value, color string) string {
	left, right := 7*len(label)+14, 7*len(value)+14
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="20" role="img" aria-label="%[4]s: %[5]s">
<rect width="%[1]d" height="20" rx="3" fill="#4a4f57"/>
<path d="M%[2]d 0h%[3]da3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-%[3]dz" fill="%[8]s"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="%[6]d" y="14">%[4]s</text>
<text x="%[7]d" y="14">%[5]s</text>
</g>
</svg>
`, left+right, left, right-3, label, value, left/2, left+right/2, color)
}

// Colours of the picture. A reader's preference for dark selects the second set. Each set has a
// background of its own, because the page around the picture can have another one than the reader's
// system prefers.
const style = `<style>
.back{fill:#ffffff;stroke:#d0d7de}
.box{fill:#eef4fb;stroke:#3d6ea5}
.good{fill:#eaf6ed;stroke:#3a8050}
.bad{fill:#fdeeee;stroke:#b0413e}
.line{fill:none;stroke:#57606a;stroke-width:1.5}
.head{fill:#57606a}
text{font-family:Helvetica,Arial,DejaVu Sans,sans-serif;text-anchor:middle;fill:#1f2328;font-size:16px}
.name{font-size:20px;font-weight:bold}
.start{text-anchor:start}
@media (prefers-color-scheme: dark){
.back{fill:#0d1117;stroke:#30363d}
.box{fill:#152238;stroke:#6ea0d8}
.good{fill:#12261a;stroke:#58b075}
.bad{fill:#2d1517;stroke:#e0716d}
.line{stroke:#9aa4af}
.head{fill:#9aa4af}
text{fill:#e6edf3}
}
</style>
`

// box is a station of the message: its name, and a line below the name.
type box struct {
	class      string
	x, y       int // of the left upper corner
	name, note string
}

const boxWidth, boxHeight = 184, 66

func (b box) svg() string {
	return fmt.Sprintf(`<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="6"/>
<text class="name" x="%d" y="%d">%s</text>
<text x="%d" y="%d">%s</text>
`, b.class, b.x, b.y, boxWidth, boxHeight, b.x+boxWidth/2, b.y+28, b.name, b.x+boxWidth/2, b.y+52, b.note)
}

// arrow is a path in absolute coordinates that ends at an arrow head, and a text beside it.
type arrow struct {
	path   string
	class  string // of the text
	x, y   int    // of the text
	legend string // may be empty
}

func (a arrow) svg() string {
	line := fmt.Sprintf(`<path class="line" d="%s" marker-end="url(#head)"/>`+"\n", a.path)
	if a.legend == "" {
		return line
	}
	return line + fmt.Sprintf("<text%s x=\"%d\" y=\"%d\">%s</text>\n", a.class, a.x, a.y, a.legend)
}

// message returns the path of a message through an endpoint.
func message() string {
	const start = ` class="start"`
	boxes := []box{
		{"box", 14, 20, "message", "sent or published"},
		{"box", 226, 20, "queue", "at your broker"},
		{"box", 438, 20, "handler", "your function"},
		{"good", 702, 20, "completed", "its messages leave"},
		{"box", 438, 142, "retry", "at once, then later"},
		{"bad", 702, 142, "error queue", "with the cause"},
		{"box", 702, 264, "operator", "looks and repairs"},
	}
	arrows := []arrow{
		{path: "M198 53H222"},
		{path: "M410 53H434"},
		{"M622 53H698", "", 657, 46, "nil"},
		{"M530 86V138", start, 540, 118, "error or crash"},
		{"M438 175H350V90", "", 392, 167, "again"},
		{"M622 175H698", "", 657, 168, "used up"},
		{"M794 208V260", start, 804, 240, "an alert"},
		{"M702 297H290V90", "", 500, 289, "holdfast errors retry"},
	}
	var b strings.Builder
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 350" width="900" height="350" role="img">
<title>The path of a message: queue, handler, retry, error queue, operator</title>
` + style + `<defs><marker id="head" viewBox="0 0 10 10" refX="6" refY="5" markerWidth="8" markerHeight="8" orient="auto">` +
		`<path class="head" d="M0 0L10 5L0 10z"/></marker></defs>
<rect class="back" x="1" y="1" width="898" height="348" rx="8"/>
`)
	for _, s := range boxes {
		b.WriteString(s.svg())
	}
	for _, a := range arrows {
		b.WriteString(a.svg())
	}
	b.WriteString("</svg>\n")
	return b.String()
}
