"""Topics of study, work and free time."""

from __future__ import annotations

from badpo.data.corpora.bundled.topics import topic

STUDY_TOPICS = (
    topic(
        "exam",
        tasks="study for an exam; stay calm in an exam; plan the last week before an exam; learn many dates",
        tools="old exam papers; a study plan; small cards",
        steps="read the old papers; make a plan for each day; start with the hard parts; test yourself without "
        "the book; explain it to a friend; sleep well before the day",
        details="study for 40 minutes and rest for 10; learn 15 cards a day; start 3 weeks ahead",
        reasons="testing helps the memory; tired people make errors; short breaks keep you awake",
        aims="you remember more; you stay calm",
        mistakes="learn all night before the exam; skip every question; read the book upside down",
    ),
    topic(
        "essay",
        tasks="write a clear essay; start an essay; write a good ending; shorten a long essay",
        tools="a short outline; a good dictionary; a pencil",
        steps="write the main point in one line; make an outline first; give each part one idea; use short "
        "sentences; add an example; cut words you do not need",
        details="plan 3 main parts; cut 10 words from each page; rest 1 day before you check",
        reasons="the ear finds errors; one idea is easy to follow; examples stay in mind",
        aims="the reader can follow; the point is clear",
        mistakes="copy it from a friend; use the longest words; leave out the main point",
    ),
    topic(
        "giving a talk",
        tasks="give a short talk; speak without fear; make clear slides; end a talk well",
        tools="a few note cards; a clock; a glass of water",
        steps="choose one main message; say it at the start; practice it aloud; look at the people; speak "
        "slowly; make a short break after each part",
        details="practice it 3 times; use 6 slides for 10 minutes; stop 2 minutes early",
        reasons="people remember the end; full slides are not read; fear falls with practice",
        aims="people remember your point; your voice stays calm",
        mistakes="read every word from the wall; turn your back to the people; speak for 3 hours",
    ),
    topic(
        "learning words",
        tasks="learn new words in a language; remember hard words; practice a language at home; learn a "
        "language with a friend",
        tools="a box of cards; a small notebook; an easy book",
        steps="learn words in short sentences; say each word aloud; draw a small picture; repeat old words "
        "first; read a page each day; listen while you cook",
        details="learn 10 words a day; repeat them after 3 days; practice for 15 minutes",
        reasons="pictures help the memory; words alone are soon lost; a little each day adds up",
        aims="the words stay in mind; you speak with less fear",
        mistakes="learn 500 words in one night; never say a word; burn the cards",
    ),
    topic(
        "taking notes",
        tasks="take good notes; take notes in a fast lesson; sort old notes; learn from my notes",
        tools="a thick notebook; two pens; a ruler",
        steps="write the date on the page; write key words only; leave a wide edge; mark what you do not know; "
        "draw arrows between ideas; sum it up at the end",
        details="sum it up in 3 lines; read it again after 1 day; leave 4 centimeters at the edge",
        reasons="key words are fast to write; the edge holds later ideas; we forget half in a day",
        aims="you find things again; the main idea stands out",
        mistakes="write down every sound; use a pen without ink; throw the notes away at once",
    ),
    topic(
        "budget",
        tasks="make a budget; save money each month; spend less on food; plan for a big cost",
        tools="a simple table; a jar for coins; all your bills",
        steps="write down what comes in; list the fixed costs; set money aside first; shop with a list; cook at "
        "home; compare prices",
        details="save 10 percent; check it once in 7 days; keep 3 months of costs aside",
        reasons="small costs add up; lists stop quick buys; bills come at bad times",
        aims="money is left at the end; no bill is a surprise",
        mistakes="borrow more to save more; hide the bills; buy it because it is red",
    ),
    topic(
        "job interview",
        tasks="prepare for a job interview; answer hard questions in an interview; ask good questions in an "
        "interview; stay calm before an interview",
        tools="a clean shirt; a list of questions; two good examples",
        steps="read about the firm; match your skills to the job text; practice short answers; tell one real "
        "example; ask about the team; arrive a bit early",
        details="be there 10 minutes early; prepare 3 examples; keep answers under 2 minutes",
        reasons="examples prove more than claims; questions show interest; calm people listen better",
        aims="you sound prepared; they remember you",
        mistakes="come 2 hours late; invent a degree; speak badly of everyone",
    ),
    topic(
        "guitar",
        tasks="learn the guitar; tune a guitar; change the strings of a guitar; practice chords",
        tools="a tuner; new strings; a soft cloth",
        steps="tune it before you play; start with two chords; play slowly; count aloud; press near the metal "
        "bar; change one string at a time",
        details="practice for 20 minutes a day; learn 2 chords a week; change strings every 3 months",
        reasons="slow play trains the hand; sweat ruins the strings; short practice adds up",
        aims="the chords sound clear; the beat stays steady",
        mistakes="tune it with a hammer; leave it in the rain; play only when angry",
    ),
    topic(
        "dog",
        tasks="teach a dog to sit; walk a dog on a lead; keep a dog calm; wash a dog",
        tools="small treats; a light lead; a soft bed",
        steps="use one short word; give the treat at once; stop when the dog pulls; keep each lesson short; "
        "walk the dog before the lesson; praise good behavior",
        details="train for 5 minutes; walk 3 times a day; repeat it 10 times",
        reasons="dogs link the treat to the act; tired dogs learn better; shouting scares the dog",
        aims="the dog comes when you call; the walk gets easy",
        mistakes="shout at the dog for an hour; feed the dog candy; teach it at midnight",
    ),
    topic(
        "running",
        tasks="start running; run without pain; run in the heat; prepare for a long run",
        tools="good shoes; a slow plan; a bright vest",
        steps="warm up with a walk; run so slowly that you can talk; take short steps; rest a day between runs; "
        "run on soft ground; drink before you are thirsty",
        details="run for 20 minutes; run 3 times a week; walk 1 minute after each 5",
        reasons="muscles grow at rest; short steps spare the knees; a slow start prevents pain",
        aims="you run longer; your knees stay well",
        mistakes="run a marathon on day one; run in heavy boots; never drink",
    ),
    topic(
        "sleep",
        tasks="fall asleep faster; sleep better in the heat; wake up early; sleep after a bad day",
        tools="dark curtains; a boring book; a cool room",
        steps="go to bed at the same time; put the phone away; open the window before bed; write your worries "
        "down; drink no coffee after noon; read a few pages",
        details="keep the room at 18 degrees; stop coffee at 2 in the afternoon; read for 15 minutes",
        reasons="bright light keeps you awake; a cool body sleeps better; habits train the body",
        aims="you fall asleep soon; you wake up fresh",
        mistakes="drink coffee at midnight; sleep with the radio loud; look at the clock all night",
    ),
    topic(
        "sewing",
        tasks="sew on a button; mend a hole in a sock; shorten trousers; thread a needle",
        tools="a fine needle; strong thread; small scissors",
        steps="choose thread of the same color; cut the thread at an angle; make a small knot; pin the cloth "
        "first; sew from the inside; leave the thread a bit loose",
        details="sew through each hole 4 times; cut 50 centimeters of thread; leave 2 centimeters "
        "at the edge",
        reasons="pins keep the cloth in place; long thread makes knots; tight thread pulls the cloth",
        aims="the button holds; the edge is straight",
        mistakes="sew it to your own shirt; glue the button with jam; cut before you measure",
    ),
)
