# Turns metrics.jsonl files into commands of gnuplot, for scripts/plot.sh:
#   awk -f scripts/plot.awk run=1 together=N FILE run=2 together=N FILE ...
#
# Environment: NAMES (a line for each run), STEPS (those of each run's config, or 0), METRICS ("all"
# or names), SMOOTH (steps), KIND (svg, png or empty for the terminal), WIDTH, HEIGHT (of the
# terminal; 0: any), COLOUR, REPORT (a file: "done" if all runs made their steps, then messages).
#
# For each group of `together` lines only the smallest and the largest value are drawn, so that no
# spike is lost; a non-finite value breaks the curve. loss, grad_norm and tokens_per_s are means of
# the last SMOOTH steps. A line without a line end is still being written, and is skipped. Exit
# status 1: there is nothing to draw.

BEGIN {
    OFMT = CONVFMT = "%.9g"
    runs = split(ENVIRON["NAMES"], names, "\n")
    split(ENVIRON["STEPS"], steps_to_make, " ")
    smooth = ENVIRON["SMOOTH"]; kind = ENVIRON["KIND"]; width = ENVIRON["WIDTH"]
    all = ENVIRON["METRICS"] == "all"
    metrics = split("loss val_loss grad_norm loss_scale fp8_not_finite fp8_zero lr tokens_per_s " \
                    "choices_acc", metric, " ")
    split("loss,validation loss,gradient norm,loss scale,fp8 roundings of infinity or NaN," \
          "fp8 roundings of only zeros,learning rate,tokens per second," \
          "share of questions answered right", meaning, ",")
    for (m = 1; m <= metrics; m++) {
        number_of[metric[m]] = m
        # More than the charts of loss and val_loss depend on them.
        asked = index(" " ENVIRON["METRICS"] " ", " " metric[m] " ")
        if (m <= 2 || all || asked) needed[++needs] = m
        key[m] = "\"" metric[m] "\":"
        smoothed[m] = smooth > 1 && metric[m] ~ /^(loss|grad_norm|tokens_per_s)$/
        if (smoothed[m]) meaning[m] = meaning[m] ", mean of the last " smooth " steps"
    }
    LOSS = 1; VALIDATION = 2; SKIPPED = metrics + 1
    # Constant values of a run without mixed precision.
    rest[number_of["loss_scale"]] = 1
    rest[number_of["fp8_not_finite"]] = rest[number_of["fp8_zero"]] = 0
}

# ---- the numbers

# Returns the number that text begins with; "" if it is not finite or too large to draw.
function number(text) {
    if (text !~ /^ *-?[0-9]/ || text + 0 > 1e100 || text + 0 < -1e100) return ""
    return text + 0 > 1e-100 || text + 0 < -1e-100 ? text + 0 : 0
}

# Returns the mean with the values before.
function mean(m, value,    at, n) {
    n = ++known[run, m]
    at = run SUBSEP m SUBSEP n % smooth
    sum[run, m] += value - ring[at]
    ring[at] = value
    return sum[run, m] / (n < smooth ? n : smooth)
}

function add(m, x, y) { points[run, m] = points[run, m] x " " y "\n" }

# Ends a group of lines, of which only two values are drawn.
function end_group(m) {
    if (any[m] && low_at[m] <= high_at[m]) add(m, low_at[m], low[m])
    if (any[m] && low_at[m] != high_at[m]) add(m, high_at[m], high[m])
    if (any[m] && low_at[m] > high_at[m]) add(m, low_at[m], low[m])
    if (broken[m]) add(m, broken[m], "NaN")
    any[m] = broken[m] = 0
}

function take(m, value) {
    if (!any[m] || value < low[m]) { low[m] = value; low_at[m] = step }
    if (!any[m] || value > high[m]) { high[m] = value; high_at[m] = step }
    any[m] = 1
    if (!count[run, m]++) smallest[run, m] = largest[run, m] = value
    if (value < smallest[run, m]) smallest[run, m] = value
    if (value > largest[run, m]) largest[run, m] = value
}

function end_run() { for (m = 1; m <= metrics; m++) end_group(m) }

FNR == 1 { last = run; run = before; end_run(); before = run = last }
!/^[{] *"step": *[0-9].*[}][ \t\r]*$/ { next }
{
    step = number(substr($0, index($0, ":") + 1, 24))
    if (step == "" || step > 1e15) next
    group = int(FNR / together)
    for (i = 1; i <= needs; i++) {
        m = needed[i]
        at = index($0, key[m])
        if (!at) continue
        if (group != now[m]) end_group(m)
        now[m] = group
        if (first == "" || step < first) first = step
        if (step > last_step) last_step = step
        if (m == LOSS && step > reached[run]) reached[run] = step
        value = number(substr($0, at + length(key[m]), 32))
        if (value == "") broken[m] = step
        else take(m, smoothed[m] ? mean(m, value) : value)
    }
    value = number(substr($0, index($0, "\"loss_scale\":") + 13, 32))
    if (index($0, "\"skipped\": true") && value != "") {
        count[run, SKIPPED]++
        add(SKIPPED, step, value)
    }
}

# ---- the picture

function quoted(text) { gsub(/'/, "''", text); return "'" text "'" }

function is_drawn(r, m) {
    if (all && m in rest && smallest[r, m] == rest[m] && largest[r, m] == rest[m]) return 0
    return count[r, m] > 0
}

# Adds a curve to `plot`.
function add_curve(r, m, style, title,    look, point, every) {
    point = m == SKIPPED ? "x" : runs > 1 ? substr("ABCDEFGHIJKLMNOPQRSTUVWXYZ", r % 26, 1) : "V"
    look = " lt " ((r - 1) % 8 + 1)
    if (kind) point = m == SKIPPED ? "2 ps 0.8" : ((r - 1) % 4 * 2 + 5) " ps 0.6"
    else point = "'" point "'"
    if (kind && style != "points") look = look " lw 1.3 dt " (int((r - 1) / 8) % 5 + 1)
    if (style ~ /points/) look = look " pt " point
    # In the terminal many marks would cover the curve.
    if (!kind && m == VALIDATION && style == "points")
        every = " every " int((count[r, m] + 19) / 20)
    printf "$r%dm%d << END\n%sEND\n", r, m, points[r, m]
    plot = plot (plot ? ", " : "plot ") "$r" r "m" m every " with " style look " title "
    plot = plot quoted(title)
}

function axis(m,    r, from, to) {
    from = to = ""
    for (r = 1; r <= runs; r++) {
        if (!is_drawn(r, m)) continue
        if (from == "" || smallest[r, m] < from) from = smallest[r, m]
        if (to == "" || largest[r, m] > to) to = largest[r, m]
    }
    print "unset logscale y; set format y '%g'; set yrange [*:*]"
    if (metric[m] == "tokens_per_s") print "set format y '%.0f'; set yrange [0:*]"
    if (metric[m] == "grad_norm" && from > 0 && to > 50 * from) print "set logscale y"
    if (metric[m] == "loss_scale" && from > 0)
        printf "set logscale y 2; set format y '2^%%L'; set yrange [%g:%g]\n", from / 2, to * 2
}

# A curve; many runs share one entry in the legend.
function add_extra(r, m, title) {
    if (!count[r, m]) return
    if (runs > (kind ? 1 : 4)) { if (m in told) title = ""; told[m] = 1 }
    else if (runs > 1) title = names[r] ", " title
    add_curve(r, m, "points", title)
}

function chart(m,    r, style) {
    plot = ""
    split("", told)
    print "set key title " quoted(meaning[m]) " left"
    axis(m)
    for (r = 1; r <= runs; r++) {
        if (!is_drawn(r, m)) continue
        style = m in rest ? "steps" : "lines"
        if (m == VALIDATION || metric[m] == "choices_acc") style = "linespoints"
        add_curve(r, m, count[r, m] == 1 ? "points" : style, names[r])
    }
    for (r = 1; r <= runs; r++) {
        if (m == LOSS) add_extra(r, VALIDATION, "validation")
        if (metric[m] == "loss_scale") add_extra(r, SKIPPED, "skipped steps")
    }
    print plot
}

# Sets chosen[1 .. charts]; reports metrics that no run has.
function choose(    n, names_asked, i, r, m, found) {
    n = all ? metrics : split(ENVIRON["METRICS"], names_asked, " ")
    for (i = 1; i <= n; i++) {
        m = all ? i : number_of[names_asked[i]]
        found = 0
        for (r = 1; r <= runs; r++) if (is_drawn(r, m)) found = 1
        if (found) chosen[++charts] = m
        else if (!all) missing = missing " " metric[m]
    }
    if (missing) print "no finite value of" missing >ENVIRON["REPORT"]
}

function settings(    columns, rows, colours, i) {
    print "set encoding utf8; set xlabel 'step'; set format x '%.0f'"
    if (!kind) {
        rows = charts == 1 ? 22 : 18
        if (ENVIRON["HEIGHT"] > 0) rows = int((ENVIRON["HEIGHT"] - 1) / charts)
        printf "set terminal dumb size %d, %d noenhanced %s; set colorsequence classic\n", width,
               rows < 10 ? 10 : rows, ENVIRON["COLOUR"]
        print "set key above left Left reverse samplen 2 noenhanced"
    } else {
        columns = charts > 1 ? 2 : 1
        rows = int((charts + columns - 1) / columns)
        if (kind == "svg")
            printf "set terminal svg size 1000, %d dynamic font 'sans-serif,13' noenhanced " \
                   "background 'white'\n", rows * 330
        else printf "set terminal pngcairo size 1500, %d fontscale 1.3 noenhanced\n", rows * 495
        # One colour for each run.
        split("0067a3 c95000 008a63 b0558d a87400 2f9bd6 5f666d 7c7a00", colours, " ")
        for (i = 1; i <= 8; i++) printf "set linetype %d lc rgb '#38%s'\n", i, colours[i]
        print "set key above left horizontal Left reverse; set grid lc rgb '#e8ebee' lt 1"
        printf "set border 3 lc rgb '#5b636b'; set tics nomirror; set multiplot layout %d,%d\n",
               rows, columns
    }
    if (first == last_step) { first--; last_step++ }
    if (last_step - first < 8) print "set xtics 1"
    printf "set xrange [%d:%d]\n", first, last_step
}

END {
    end_run()
    made = 1
    for (r = 1; r <= runs; r++) {
        if (!steps_to_make[r] || reached[r] < steps_to_make[r]) made = 0
        if (!reached[r])
            print names[r] ": no steps in it yet; --follow waits for them" >ENVIRON["REPORT"]
    }
    if (made) print "done" >ENVIRON["REPORT"]
    choose()
    if (!charts) exit 1
    settings()
    for (i = 1; i <= charts; i++) chart(chosen[i])
}
