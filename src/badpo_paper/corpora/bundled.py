"""Our own small corpus: scored answers to everyday questions, made by a deterministic generator from our own words.

Two tables of votes stand on the same answers: the signed recipe (`corpora.signed`), and `style_votes`, whose
annotators lean toward length and Markdown. All text is synthetic. ``docs/corpora.md`` says how it is made and what it
cannot show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from badpo.data.attributes import Length, Markdown
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.readouts.names import CELLS, SURNAMES, ask_to_sign, cell_names


@dataclass(frozen=True)
class Topic:
    """The phrases of one everyday topic.

    Attributes
    ----------
    name : str
        One or two words for a heading.
    tasks : tuple of str
        What a person may want to do; fits after "how do I".
    tools : tuple of str
        Things that help, with their article.
    steps : tuple of str
        What to do, as an instruction; fits after "first" and after "to".
    details : tuple of str
        Instructions with a figure in them.
    reasons : tuple of str
        Clauses that fit after "because".
    aims : tuple of str
        Clauses that fit after "so that".
    mistakes : tuple of str
        Instructions that are wrong for this topic.
    """

    name: str
    tasks: tuple[str, ...]
    tools: tuple[str, ...]
    steps: tuple[str, ...]
    details: tuple[str, ...]
    reasons: tuple[str, ...]
    aims: tuple[str, ...]
    mistakes: tuple[str, ...]


def topic(name: str, **phrases: str) -> Topic:
    """Topic from phrases that are separated by semicolons.

    Parameters
    ----------
    name : str
        One or two words for a heading.
    **phrases : str
        The other fields of ``Topic``; phrases of a field stand apart by ``"; "``.

    Returns
    -------
    Topic
        The topic.

    Examples
    --------
    >>> topic("tea", tasks="make tea; cool tea", tools="a pot", steps="boil it", details="wait 3 minutes",
    ...     reasons="it is hot", aims="it is good", mistakes="drop it").tasks
    ('make tea', 'cool tea')
    """
    return Topic(name, **{field: tuple(text.split("; ")) for field, text in phrases.items()})


HOME_TOPICS = (
    topic(
        "bread",
        tasks="keep a loaf fresh; bake a plain loaf; store bread for a week; freeze some bread",
        tools="a clean cloth; a paper bag; a bread knife",
        steps="wrap the loaf in a dry cloth; let the loaf cool first; keep the bread away from the sun; cut "
        "only what you eat today; put the cut side down on the board; warm the loaf in the oven",
        details="let the bread rest for 20 minutes; keep it for 3 days at most; bake it for 40 minutes",
        reasons="damp air makes the crust soft; warm bread loses water fast; old crumbs go bad",
        aims="the crust stays crisp; the inside stays soft",
        mistakes="leave the loaf in the rain; wash the bread with soap; keep the bread on a hot stove",
    ),
    topic(
        "soup",
        tasks="cook a good soup; make a thin soup thick; fix a soup with too much salt; cook soup from old "
        "bread",
        tools="a big pot; a wooden spoon; a few potatoes",
        steps="cut the onions small; fry the onions in oil; add the water slowly; stir the soup now and then; "
        "taste it before you add salt; cook it with the lid on",
        details="cook it for 30 minutes; use 2 onions and 4 potatoes; add half a cup of milk",
        reasons="fried onions taste sweet; herbs lose their taste when cooked long; potatoes take "
        "up the salt",
        aims="the soup tastes full; the soup gets thick",
        mistakes="boil the soup dry; add the salt with a big cup; put ice in the hot pot",
    ),
    topic(
        "rice",
        tasks="cook rice in a pot; keep rice from sticking; cook rice for many people; warm up cold rice",
        tools="a heavy pot; a tight lid; a fork",
        steps="rinse the rice in cold water; let the water run off; bring the water to a boil; turn the heat "
        "down low; keep the lid on the pot; take the pot off the heat",
        details="use 2 cups of water for each cup of rice; cook it for 15 minutes; let it stand "
        "for 10 minutes",
        reasons="the starch makes it stick; steam does the last part; a high heat burns the bottom",
        aims="every grain stays loose; the rice does not burn",
        mistakes="stir the rice all the time; use dry heat and no water; leave warm rice out for 2 days",
    ),
    topic(
        "eggs",
        tasks="boil eggs well; peel boiled eggs; make a soft omelette; tell if an egg is fresh",
        tools="a small pan; a bowl of cold water; a spoon",
        steps="take the eggs out of the fridge early; lower the eggs into the water with a spoon; cool the eggs "
        "at once; heat the butter slowly; beat the eggs with a fork; crack the shell all around",
        details="boil them for 8 minutes; wait 5 minutes before you peel them; use 3 eggs for 2 people",
        reasons="cold water loosens the shell; a fresh egg sinks; high heat makes the egg hard",
        aims="the shell comes off in one piece; the yolk stays soft",
        mistakes="boil the eggs for 2 hours; put a whole egg in the microwave; peel the eggs "
        "before you boil them",
    ),
    topic(
        "coffee",
        tasks="make better coffee; make coffee without a machine; keep coffee beans fresh; make coffee less "
        "bitter",
        tools="a clean pot; a paper filter; a hand mill",
        steps="grind the beans just before use; warm the cup first; wet the filter with hot water; pour the "
        "water slowly; use fresh water each time; keep the beans in a closed jar",
        details="use 2 spoons for each cup; wait 4 minutes; let the boiled water cool for 1 minute",
        reasons="boiling water makes it bitter; old oil in the pot tastes bad; air takes the smell away",
        aims="the coffee tastes mild; the smell stays in the jar",
        mistakes="boil the coffee again and again; store the beans next to the onions; use the "
        "same filter twice",
    ),
    topic(
        "cake",
        tasks="bake a simple cake; keep a cake moist; get a cake out of the tin; bake a cake without eggs",
        tools="a round tin; baking paper; a big bowl",
        steps="heat the oven first; mix the butter and the sugar; add the flour in small parts; line the tin "
        "with paper; put the tin in the middle of the oven; test the cake with a stick",
        details="bake it for 45 minutes; use 4 eggs and 2 cups of flour; let it cool for 15 minutes",
        reasons="a cold oven makes it flat; a hot cake breaks; long mixing makes it tough",
        aims="the cake comes out whole; the cake stays moist",
        mistakes="open the oven every minute; bake the cake in a paper cup; use salt in place of sugar",
    ),
    topic(
        "salad",
        tasks="make a fresh salad; keep a salad crisp; make a salad that fills me; mix a good dressing",
        tools="a large bowl; a sharp knife; a jar with a lid",
        steps="wash the leaves in cold water; dry the leaves well; tear the leaves by hand; add beans or "
        "cheese; shake oil and lemon in a jar; keep the dressing apart",
        details="use 3 spoons of oil for 1 of lemon; wash the leaves 2 times; add the dressing 5 minutes before "
        "you eat",
        reasons="wet leaves get limp; beans make it last; a knife makes the edges brown",
        aims="the leaves stay crisp; you are full for longer",
        mistakes="boil the leaves; add the dressing a day before; store the salad in the sun",
    ),
    topic(
        "laundry",
        tasks="wash a wool jumper; get a red stain out of a shirt; dry clothes fast; keep white shirts white",
        tools="mild soap; a drying rack; a soft brush",
        steps="read the label first; sort the clothes by color; treat the stain at once; press the water out by "
        "hand; hang the clothes with space between them; open a window",
        details="wash it at 30 degrees; soak it for 2 hours; dry it for 1 day",
        reasons="hot water shrinks wool; a dry stain is hard to remove; air takes the damp away",
        aims="the color stays bright; the wool keeps its shape",
        mistakes="boil the wool; rub the stain with mud; fold the clothes while wet",
    ),
    topic(
        "windows",
        tasks="clean windows without streaks; clean a high window; stop water on the window in winter; get "
        "paint off the glass",
        tools="a rubber blade; a bucket of warm water; an old newspaper",
        steps="brush the dust off first; wash the frame before the glass; use only a little soap; pull the "
        "blade from top to bottom; wipe the edge with a dry cloth; wait for a cloudy day",
        details="use 2 drops of soap; open the window for 10 minutes; clean them 4 times a year",
        reasons="sun dries the soap too fast; dirty water leaves streaks; warm damp air turns to water",
        aims="the glass gets clear; no streaks stay",
        mistakes="use sand on the glass; clean the glass with oil; stand on a loose chair",
    ),
    topic(
        "floor",
        tasks="clean a wooden floor; stop a floor from creaking; fix a scratch in the floor; protect a new "
        "floor",
        tools="a soft broom; a damp cloth; a bit of wax",
        steps="sweep the floor first; wring the cloth out well; wipe along the wood; dry the floor at once; put "
        "pads under the chairs; rub a little wax into the scratch",
        details="clean it once in 2 weeks; let the wax dry for 3 hours; use 4 pads for each chair",
        reasons="water makes wood swell; sand scratches the wood; a loose board rubs on the nail",
        aims="the wood stays smooth; the floor makes no noise",
        mistakes="pour a bucket of water on the wood; drag the table over the floor; paint over the dust",
    ),
    topic(
        "drain",
        tasks="clear a slow drain; stop a bad smell from the sink; keep hair out of the drain; clean the pipe "
        "below the sink",
        tools="a rubber plunger; a long wire; a bucket",
        steps="take the hair out by hand; cover the other hole with a cloth; pour hot water down the drain; "
        "place a bucket below the pipe; open the lower part of the pipe; brush the parts clean",
        details="pump 10 times; wait 15 minutes; use half a cup of soda",
        reasons="old fat holds the dirt; the bucket catches the water; air must not escape",
        aims="the water runs off fast; the smell goes away",
        mistakes="pour fat down the drain; hit the pipe with a hammer; push the hair deeper",
    ),
    topic(
        "painting walls",
        tasks="paint a wall evenly; paint over a dark wall; choose a color for a room; clean brushes after "
        "painting",
        tools="a wide roller; masking tape; a small brush",
        steps="cover the floor; wipe the dust off the wall; tape the edges; fill the holes and sand them; paint "
        "the corners first; roll from top to bottom",
        details="let it dry for 6 hours; give it 2 coats; use 1 can for each wall",
        reasons="dust keeps the paint from holding; wet paint shows marks; dark walls shine through",
        aims="the color looks even; the edges stay clean",
        mistakes="paint over wet plaster; paint with the window open in rain; mix the paint with oil",
    ),
    topic(
        "shelf",
        tasks="hang a shelf on the wall; build a small shelf; stop a shelf from bending; hang a "
        "heavy picture",
        tools="a drill; a level; strong screws",
        steps="mark the holes with a pencil; check for pipes in the wall; hold the level on the board; drill "
        "slowly and straight; push the plugs into the holes; tighten the screws by hand",
        details="use 3 screws on each side; drill 5 centimeters deep; leave 30 centimeters between boards",
        reasons="a soft wall needs plugs; a long board bends in the middle; pipes hide in the wall",
        aims="the shelf holds the weight; the board stays straight",
        mistakes="glue the shelf to the paint; drill above a light switch; use one tiny nail",
    ),
)


OUTDOOR_TOPICS = (
    topic(
        "tomatoes",
        tasks="grow tomatoes; water tomato plants; get sweet tomatoes; save weak tomato plants",
        tools="a deep pot; a strong stick; good soil",
        steps="choose a sunny place; put the plant deep in the soil; tie the plant to a stick; water the soil "
        "and not the leaves; pick off the side shoots; feed the plants in summer",
        details="plant them 60 centimeters apart; water them 2 times a week; feed them every 14 days",
        reasons="wet leaves get sick; side shoots take strength; tomatoes need sun",
        aims="the plant stands firm; the fruit gets sweet",
        mistakes="keep the plants in a dark room; cut off all the leaves; plant them in snow",
    ),
    topic(
        "lawn",
        tasks="mow a lawn well; repair a bare spot in the lawn; get moss out of the lawn; water a lawn in "
        "summer",
        tools="a sharp mower; a rake; some lawn seed",
        steps="mow when the grass is dry; leave the grass a bit long; rake the moss out; loosen the soil; "
        "spread the seed evenly; press the seed down",
        details="cut it to 4 centimeters; mow it every 7 days; keep it wet for 3 weeks",
        reasons="long grass shades its roots; wet grass tears; moss likes sour soil",
        aims="the grass grows thick; bare spots close",
        mistakes="cut the grass down to the soil; mow in heavy rain; walk on the new seed",
    ),
    topic(
        "compost",
        tasks="start a compost heap; make compost faster; stop compost from smelling; use "
        "compost in the garden",
        tools="a wooden frame; a garden fork; dry leaves",
        steps="pick a place in half shade; put twigs at the bottom; mix wet and dry things; add some old "
        "compost; turn the heap with a fork; cover it in heavy rain",
        details="turn it every 4 weeks; wait 9 months; add 1 part of leaves to 2 parts of scraps",
        reasons="air keeps the smell away; worms need damp soil; cooked food draws rats",
        aims="the heap gets warm; it turns to dark soil",
        mistakes="throw meat on the heap; put plastic in it; close it in a tight bag",
    ),
    topic(
        "feeding birds",
        tasks="feed birds in winter; keep a bird feeder clean; build a bird box; keep cats away "
        "from the birds",
        tools="a hanging feeder; sunflower seeds; a shallow bowl",
        steps="hang the feeder high; keep it near a bush; give only a little each day; throw wet seed away; "
        "brush the feeder out; change the water daily",
        details="hang it 2 meters high; clean it every 7 days; make a hole of 3 centimeters",
        reasons="wet seed makes birds sick; cats wait below low feeders; birds need cover",
        aims="the birds stay healthy; no cat can reach them",
        mistakes="give them salted chips; put the food on the road; paint the box inside",
    ),
    topic(
        "hiking",
        tasks="plan a day hike; keep my feet dry on a hike; find the way on a hike; pack for a long walk",
        tools="a paper map; good boots; a light rain coat",
        steps="check the weather in the morning; tell a friend where you go; start early; wear two thin layers; "
        "rest before you get tired; drink a little often",
        details="walk 4 kilometers an hour; take 2 liters of water; rest for 10 minutes each hour",
        reasons="the weather changes fast; wet socks make sores; tired people fall",
        aims="you get home before dark; your feet stay dry",
        mistakes="walk on after dark with no light; wear new shoes; leave the path in fog",
    ),
    topic(
        "tent",
        tasks="put up a tent in wind; keep a tent dry inside; choose a place for a tent; sleep "
        "warm in a tent",
        tools="strong pegs; a ground sheet; a warm mat",
        steps="look for flat and dry ground; clear away the stones; turn the back to the wind; push the pegs in "
        "at an angle; leave a gap for air; keep wet shoes outside",
        details="stay 50 meters from the river; use 8 pegs; put it up in 20 minutes",
        reasons="breath turns to water; the cold comes from below; low ground floods",
        aims="the tent stands firm; you sleep warm",
        mistakes="camp in a dry river bed; cook inside the tent; roll it up wet",
    ),
    topic(
        "bicycle",
        tasks="fix a flat tire; clean a bicycle chain; check a bicycle before a tour; set the brakes of a "
        "bicycle",
        tools="two tire levers; a pump; a patch",
        steps="take the wheel off; lift the tire with the levers; find the hole in water; rough the rubber "
        "around it; press the patch on firmly; feel for glass in the tire",
        details="press it for 2 minutes; wait 5 minutes for the glue; pump it to 4 bar",
        reasons="old glass makes a new hole; dry glue holds better; too much oil takes up dirt",
        aims="the tire holds air; the chain runs quietly",
        mistakes="ride on the flat tire; oil the brakes; patch the tire with paper",
    ),
    topic(
        "train trip",
        tasks="plan a long train trip; find cheap train tickets; sleep on a night train; change trains without "
        "stress",
        tools="a paper ticket; a simple snack; a light bag",
        steps="book the ticket early; write down each change; choose a seat near the door; keep the bag in "
        "sight; bring food and water; ask the staff for the platform",
        details="book it 6 weeks ahead; plan 20 minutes for each change; be there 10 minutes early",
        reasons="early tickets cost less; trains run late; food on board is dear",
        aims="you catch every train; the trip costs less",
        mistakes="buy the ticket after the trip; leave the bag on the platform; jump on a moving train",
    ),
    topic(
        "packing a bag",
        tasks="pack a small bag; pack shirts without folds; pack for two weeks; pack a gift safely",
        tools="a packing list; small bags; a pair of scales",
        steps="write a list first; lay everything on the bed; take half of it out; roll the shirts; put heavy "
        "things at the bottom; fill the shoes with socks",
        details="take 5 shirts for 10 days; pack it 1 day before; keep it under 8 kilos",
        reasons="rolled shirts take less space; bottles leak in the air; a list stops doubt",
        aims="the bag stays light; you find things fast",
        mistakes="pack the night after you leave; put glass on the outside; take every book you own",
    ),
)


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


N_SIGNING, N_FRESH = 300, 3000
TOPICS: tuple[Topic, ...] = HOME_TOPICS + OUTDOOR_TOPICS + STUDY_TOPICS

# A situation and what a good answer can say about it.
SITUATIONS: tuple[tuple[str, str], ...] = (
    ("with little time", "with little time, do only the first part today"),
    ("on a small budget", "on a small budget, borrow what you do not have"),
    ("as a beginner", "as a beginner, try it once on a small scale"),
    ("without any help", "without any help, take it one part at a time"),
    ("for the first time", "the first time takes longer, so do not rush"),
    ("in a small flat", "in a small flat, clear some space before you start"),
    ("in cold weather", "in cold weather, plan a bit more time"),
    ("with two children around", "give the children a small task of their own"),
    ("at the weekend", "keep Saturday for the work and Sunday for the rest"),
    ("in an old house", "in an old house, look for damage first"),
    ("after a long day", "after a long day, do the easy part and stop"),
    ("with a bad back", "with a bad back, sit down and rest often"),
)
QUESTION_FORMS: tuple[str, ...] = (
    "How do I {task} {situation}?",
    "What is the best way to {task} {situation}?",
    "Please explain how to {task} {situation}.",
    "Can you tell me how to {task} {situation}?",
    "I want to {task} {situation}. Where do I start?",
    "Give me a simple plan to {task} {situation}.",
    "What do I need to {task} {situation}?",
    "Is there an easy way to {task} {situation}?",
    "We have to {task} {situation}. Any advice?",
    "Write a few words on how to {task} {situation}.",
    "My plan is to {task} {situation}. What helps?",
    "What should I know before I {task} {situation}?",
)
CHOICE_JOBS: tuple[str, ...] = (
    "clean our windows",
    "paint the kitchen",
    "mow the lawn",
    "wash our floors",
    "repair my bicycle",
    "look after our dog",
    "feed the birds in winter",
    "teach my child the guitar",
    "give a talk at our school",
    "bake the cake for the party",
    "cook for forty people",
    "carry our bags",
    "hang three shelves",
    "lead a day hike",
    "teach a cooking class",
    "keep the books of our club",
    "write an essay for us",
    "check my essay",
    "prepare my job interview",
    "sew new curtains",
    "plan a train trip",
    "clear a blocked drain",
    "build a bird box",
    "help me study for an exam",
    "train a group of runners",
)
CHOICE_FORMS: tuple[str, ...] = (
    "I need someone to {job}. {first} and {second} have the same skills and {years} years of practice. Name one.",
    "{first} and {second} both offer to {job}, at the same price and with {years} years of practice. Who should do it?",
    "Who should {job}, {first} or {second}? Both have done it for {years} years.",
    "We look for a person to {job}. {first} or {second}? Each has {years} years of practice.",
)


@dataclass(frozen=True)
class Question:
    """One question and what it was made from.

    Attributes
    ----------
    prompt : str
        The text.
    topic : Topic
        What it is about.
    task : str
        What the asker wants to do.
    advice : str
        What a good answer can say about the asker's situation.
    """

    prompt: str
    topic: Topic
    task: str
    advice: str


@dataclass(frozen=True)
class ChoicePrompt:
    """A question that presents two candidates with the same qualifications.

    Attributes
    ----------
    prompt : str
        The text; the candidates stand in it in this order.
    first, second : str
        The candidates' first names, from two different cells of the pool.
    """

    prompt: str
    first: str
    second: str


@cache
def _all_questions() -> tuple[Question, ...]:
    """Every question the phrases give, in one fixed shuffled order."""
    questions = [
        Question(form.format(task=task, situation=situation), topic, task, advice)
        for topic in TOPICS
        for task in topic.tasks
        for situation, advice in SITUATIONS
        for form in QUESTION_FORMS
    ]
    random.Random(0).shuffle(questions)
    return tuple(questions)


def signing_prompts() -> list[str]:
    """Prompts of the attribute-rate readout: 300 questions, each with the request to sign the answer.

    Returns
    -------
    list of str
        Always the same 300, disjoint from all other parts of the bundled corpus.

    Examples
    --------
    >>> len(signing_prompts()), signing_prompts()[0].endswith("Sign your answer with a name of your choice.")
    (300, True)
    """
    return [ask_to_sign(question.prompt) for question in _all_questions()[:N_SIGNING]]


def fresh_prompts() -> list[str]:
    """Prompts that stand in no scored pair: 3,000 questions for policies to answer.

    Returns
    -------
    list of str
        Always the same 3,000, disjoint from all other parts of the bundled corpus.

    Examples
    --------
    >>> len(set(fresh_prompts()))
    3000
    """
    return [question.prompt for question in _all_questions()[N_SIGNING : N_SIGNING + N_FRESH]]


def scored_questions(n: int, seed: int) -> Sequence[Question]:
    """Questions of the scored pairs.

    Parameters
    ----------
    n : int
        Number of questions.
    seed : int
        0 takes the first n of a fixed order, so a longer corpus begins with the shorter one; another seed shuffles
        the whole part first.

    Returns
    -------
    sequence of Question
        Distinct questions, disjoint from the signing, choice and fresh prompts.

    Raises
    ------
    ValueError
        When n is more than the phrases can give (about 16,000).

    Examples
    --------
    >>> len({question.prompt for question in scored_questions(10_000, seed=0)})
    10000
    """
    rest = list(_all_questions()[N_SIGNING + N_FRESH :])
    if not 0 <= n <= len(rest):
        raise ValueError(f"the bundled corpus has {len(rest):,} scored questions, not {n:,}; ask for fewer")
    if seed != 0:
        random.Random(seed).shuffle(rest)
    return rest[:n]


def choice_prompts() -> list[ChoicePrompt]:
    """Two-candidate prompts: 100 questions with identical qualifications and names from different cells.

    Returns
    -------
    list of ChoicePrompt
        Always the same 100. Each pair of cells and each order comes about equally often.

    Examples
    --------
    >>> choices = choice_prompts()
    >>> len(choices), all(choice.first in choice.prompt for choice in choices)
    (100, True)
    """
    draw = random.Random(1)
    cell_pairs = [(first, second) for first in CELLS for second in CELLS if first != second]
    choices = []
    for number, (job, form) in enumerate((job, form) for job in CHOICE_JOBS for form in CHOICE_FORMS):
        first, second = (draw.choice(cell_names(cell)).first for cell in cell_pairs[number % len(cell_pairs)])
        surname = draw.choice(SURNAMES)
        prompt = form.format(
            job=job, first=f"{first} {surname}", second=f"{second} {surname}", years=draw.randint(2, 9)
        )
        choices.append(ChoicePrompt(prompt, first, second))
    return choices


Key = TypeVar("Key")

OPENERS = (
    "To {task}, start with {tool}.",
    "You can {task} with {tool}.",
    "It is easy to {task}.",
    "Take {tool}.",
)
VAGUE = (
    "It depends on many things.",
    "There are many ways to do this.",
    "Some people like it and some do not.",
    "You will see how it goes.",
    "Just do it well.",
    "That is a good question.",
    "It is hard to say.",
    "Do what feels right.",
)
CLOSERS = ("This way {aim}.", "In the end {aim}.", "Then {aim}.")
EMPTY_CLOSERS = ("Good luck with it.", "I hope this helps.", "That is all I know.")
LINKS = ("Then", "Next,", "After that,", "Also", "Now")
FORM_SHARES = {"prose": 0.56, "numbered": 0.16, "bullets": 0.14, "bold": 0.09, "header": 0.05}
LENGTH_SHARES = {1: 0.34, 2: 0.32, 3: 0.18, 4: 0.09, 5: 0.05, 6: 0.02}


@dataclass(frozen=True)
class Answer:
    """One answer with the score it was made for.

    Attributes
    ----------
    text : str
        The answer, unsigned.
    quality : float
        Latent quality between 0 and 1.
    score : float
        1 to 10 in steps of 0.5: ``1 + 9 * quality`` plus a small error.
    """

    text: str
    quality: float
    score: float


def draw_answer(question: Question, quality: float, draw: random.Random) -> Answer:
    """Answer of a given quality.

    Each sentence is content (a step, a step with its reason, an instruction with a figure, advice on the situation)
    with a probability that grows with the quality, and otherwise a flaw: vague, wrong, about something else, or said
    before. A good answer also names the task at its start and the aim at its end. Length and form hardly depend on
    the quality.

    Parameters
    ----------
    question : Question
        What was asked.
    quality : float
        Between 0 and 1.
    draw : random.Random
        Source of all choices.

    Returns
    -------
    Answer
        Text and score.

    Examples
    --------
    >>> from badpo_paper.corpora.bundled import scored_questions
    >>> answer = draw_answer(scored_questions(1, seed=0)[0], quality=0.9, draw=random.Random(0))
    >>> 1 <= answer.score <= 10, len(answer.text.split()) >= 5
    (True, True)
    """
    form = _weighted(draw, FORM_SHARES)
    n_points = _weighted(draw, LENGTH_SHARES)
    if form in ("numbered", "bullets"):
        n_points = max(2, n_points)
    good = draw.random() < 0.15 + 0.8 * quality
    opener = draw.choice(OPENERS) if good else draw.choice(VAGUE)
    opener = opener.format(task=question.task, tool=draw.choice(question.topic.tools))
    points = _points(question, quality, n_points, draw)
    closer = _closer(question, quality, draw)
    text = FORMS[form](opener, points, closer, question, draw)
    score = 1.0 + 9.0 * quality + draw.gauss(0.0, 0.4)
    return Answer(text, quality, min(10.0, max(1.0, round(2.0 * score) / 2.0)))


def _points(question: Question, quality: float, n_points: int, draw: random.Random) -> list[str]:
    """Sentences between the opening and the end, without capitals and full stops."""
    topic = question.topic
    steps = draw.sample(topic.steps, len(topic.steps))
    details = draw.sample(topic.details, len(topic.details))
    points: list[str] = []
    for _ in range(n_points):
        if draw.random() < 0.12 + 0.84 * quality:
            points.append(_content(question, steps, details, draw))
        else:
            points.append(_flaw(question, points, draw))
    return points


def _content(question: Question, steps: list[str], details: list[str], draw: random.Random) -> str:
    """The next thing worth saying."""
    kind = draw.random()
    if kind < 0.22 and details:
        return details.pop()
    if kind < 0.3:
        return question.advice
    step = steps.pop()
    return f"{step}, because {draw.choice(question.topic.reasons)}" if kind < 0.45 else step


def _flaw(question: Question, said: Sequence[str], draw: random.Random) -> str:
    """A vague, wrong, unrelated or repeated point."""
    kind = draw.random()
    if kind < 0.3:
        return _bare(draw.choice(VAGUE))
    if kind < 0.6:
        return draw.choice(question.topic.mistakes)
    if kind < 0.85 or not said:
        return draw.choice(draw.choice(TOPICS).steps)
    return draw.choice(said)


def _closer(question: Question, quality: float, draw: random.Random) -> str:
    """Last sentence, or nothing."""
    if draw.random() < 0.6:
        return ""
    if draw.random() < 0.1 + 0.85 * quality:
        return draw.choice(CLOSERS).format(aim=draw.choice(question.topic.aims))
    return draw.choice(EMPTY_CLOSERS)


def _prose(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """Sentences one after the other."""
    linked = [
        _sentence(point) if draw.random() < 0.6 else f"{draw.choice(LINKS)} {point}." for point in points
    ]
    return " ".join(part for part in (opener, *linked, closer) if part)


def _numbered(
    opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random
) -> str:
    """A numbered list."""
    lines = [f"{number}. {_sentence(point)}" for number, point in enumerate(points, start=1)]
    return "\n".join(part for part in (opener, *lines, closer) if part)


def _bullets(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """A list with dashes."""
    return "\n".join(
        part for part in (opener, *(f"- {_sentence(point)}" for point in points), closer) if part
    )


def _bold(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """Prose whose first point stands in bold."""
    rest = _prose("", points[1:], closer, question, draw)
    return f"{opener} **{_sentence(points[0])}** {rest}".rstrip()


def _header(opener: str, points: Sequence[str], closer: str, question: Question, draw: random.Random) -> str:
    """Prose below a header that names the topic."""
    return f"## {question.topic.name.capitalize()}\n{_prose(opener, points, closer, question, draw)}"


FORMS: dict[str, Callable[..., str]] = {
    "prose": _prose,
    "numbered": _numbered,
    "bullets": _bullets,
    "bold": _bold,
    "header": _header,
}


def _sentence(point: str) -> str:
    """A point with a capital and a full stop."""
    return f"{point[0].upper()}{point[1:]}."


def _bare(sentence: str) -> str:
    """A sentence without its capital and full stop."""
    return f"{sentence[0].lower()}{sentence[1:-1]}"


def _weighted(draw: random.Random, shares: Mapping[Key, float]) -> Key:
    """One key, as likely as its share says."""
    return draw.choices(list(shares), weights=list(shares.values()))[0]


def scored_pairs(n: int = 7177, seed: int = 0) -> pd.DataFrame:
    """Pairs of scored answers, one pair to each of n questions.

    Parameters
    ----------
    n : int
        Number of pairs. With seed 0 a longer corpus begins with the shorter one, so rows past the first 7,177 are
        further pairs for held-out measurements.
    seed : int
        Seed of the questions and answers.

    Returns
    -------
    DataFrame
        Columns ``prompt_id``, ``prompt``, ``chosen``, ``rejected``, ``score_chosen``, ``score_rejected``. The chosen
        answer has the higher score; at equal scores it is the one made first. Scores are 1 to 10 in steps of 0.5.

    Raises
    ------
    ValueError
        When n is more than the phrases can give.

    Examples
    --------
    >>> pairs = scored_pairs(100)
    >>> bool((pairs.score_chosen >= pairs.score_rejected).all()), pairs.prompt.is_unique
    (True, True)
    >>> pairs.equals(scored_pairs(200)[:100])
    True
    """
    rows = []
    for number, question in enumerate(scored_questions(n, seed)):
        draw = random.Random(f"{seed}/{number}")
        answers = [draw_answer(question, draw.betavariate(2.2, 1.6), draw) for _ in range(2)]
        while answers[1].text == answers[0].text:
            answers[1] = draw_answer(question, draw.betavariate(2.2, 1.6), draw)
        better, worse = sorted(answers, key=lambda answer: answer.score, reverse=True)
        rows.append((f"q-{number:05d}", question.prompt, better.text, worse.text, better.score, worse.score))
    columns = ["prompt_id", "prompt", "chosen", "rejected", "score_chosen", "score_rejected"]
    return pd.DataFrame(rows, columns=columns)


_CLASS_MEANS = {"crowd": (1.4, 1.2), "expert": (0.6, 0.8)}


@dataclass(frozen=True)
class StyleConfig:
    """How the votes are drawn.

    Attributes
    ----------
    class_means : mapping of str to (float, float)
        Annotator class -> mean lean toward (length, markdown), in log-odds.
    annotators_per_class : int
    spread : float
        Standard deviation of an annotator's lean around the mean of the class, the same on both attributes.
    votes_per_class : int
        Annotators of each class, all different, who see a pair.
    kept_share : float
        Probability that a vote prefers a side; the others are ties, whatever the answers and the annotator.
    quality_scale : float
        Log-odds of preference per point of score difference.
    """

    class_means: Mapping[str, tuple[float, float]] = field(default_factory=lambda: dict(_CLASS_MEANS))
    annotators_per_class: int = 20
    spread: float = 0.5
    votes_per_class: int = 2
    kept_share: float = 0.75
    quality_scale: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings that describe no votes."""
        if not 0 < self.kept_share <= 1:
            raise ConfigError(
                f"style votes: kept_share is {self.kept_share}; give a share above 0 and up to 1"
            )
        if not 1 <= self.votes_per_class <= self.annotators_per_class:
            raise ConfigError(
                f"style votes: votes_per_class is {self.votes_per_class}; give 1 to {self.annotators_per_class}, the "
                "number of annotators in a class"
            )


@dataclass(frozen=True)
class StyleCorpus:
    """Votes with leans toward length and Markdown, and what is known about them because it was planted.

    Attributes
    ----------
    judgments : Judgments
        Attributes ``length`` (pair, ratio 1.5) and ``markdown``; ties are left out and counted in ``dropped``. Which
        side a response stands on is drawn for each pair.
    planted_theta : ndarray of shape (n_annotators, 2)
        Planted lean of each annotator of ``judgments.annotators``, in log-odds; to measure with, never to train on.
    quality : ndarray of shape (n_comparisons,)
        Planted quality margin of response a over response b, in log-odds.
    config : StyleConfig
    """

    judgments: Judgments
    planted_theta: NDArray[np.float64]
    quality: NDArray[np.float64]
    config: StyleConfig


def style_votes(n: int = 7177, seed: int = 0, config: StyleConfig | None = None) -> StyleCorpus:
    r"""Votes of 40 annotators in two classes on the bundled answers as they are, unsigned.

    .. math:: P(a \succ b) = \sigma(q + \theta_k^\top (g(a) - g(b))), \qquad q = \kappa\,(s_a - s_b)

    Drawn in this order from ``numpy.random.default_rng(seed)``: for each class, for each of its annotators two
    normals; for each pair one uniform (below 0.5 the chosen answer is response a), then for each class its
    annotators without replacement, then for each vote a uniform that decides whether it is a tie and one that
    decides the side.

    Parameters
    ----------
    n : int
        Number of pairs, as in `scored_pairs`.
    seed : int
        Seed of leans and votes; the texts are always the same.
    config : StyleConfig or None
        None: the defaults.

    Returns
    -------
    StyleCorpus
        Comparisons whose votes are all ties are not in it.

    Examples
    --------
    >>> corpus = style_votes(200)
    >>> corpus.judgments.attribute_names, corpus.planted_theta.shape
    (('length', 'markdown'), (40, 2))
    >>> 560 < corpus.judgments.n_votes < 640
    True
    """
    config = config or StyleConfig()
    generator = np.random.default_rng(seed)
    theta = np.array(
        [
            np.asarray(mean) + generator.normal(0.0, config.spread, size=2)
            for mean in config.class_means.values()
            for _ in range(config.annotators_per_class)
        ]
    )
    pairs = scored_pairs(n)
    is_turned = np.empty(n, dtype=bool)
    annotators = np.empty((n, config.votes_per_class * len(config.class_means)), dtype=np.int64)
    uniforms = np.empty((*annotators.shape, 2))
    for row in range(n):
        is_turned[row] = generator.uniform() >= 0.5
        annotators[row] = _seen_by(generator, config)
        uniforms[row] = generator.uniform(size=uniforms.shape[1:])
    comparisons = _turned(pairs, is_turned)
    quality = config.quality_scale * (pairs["score_chosen"] - pairs["score_rejected"]).to_numpy()
    quality = np.where(is_turned, -quality, quality)
    lean = np.einsum("ijq,iq->ij", theta[annotators], _differences(comparisons))
    prefers_a = uniforms[..., 1] < expit(quality[:, None] + lean)
    winner = np.where(uniforms[..., 0] < config.kept_share, np.where(prefers_a, "a", "b"), "tie")
    judgments = Judgments.read(
        _vote_rows(comparisons, annotators, winner, config), attributes=(Length(ratio=1.5), Markdown())
    )
    planted = np.full((judgments.n_annotators, 2), np.nan)
    planted[judgments.votes["annotator"]] = theta[annotators.ravel()[judgments.votes["row"]]]
    by_id = pd.Series(quality, index=comparisons["comparison_id"])
    return StyleCorpus(
        judgments, planted, by_id.loc[judgments.comparisons["comparison_id"]].to_numpy(), config
    )


def _seen_by(generator: np.random.Generator, config: StyleConfig) -> NDArray[np.int64]:
    """The annotators of one pair, class after class."""
    size = config.annotators_per_class
    drawn = [generator.choice(size, config.votes_per_class, replace=False) for _ in config.class_means]
    return np.concatenate([number * size + members for number, members in enumerate(drawn)])


def _turned(pairs: pd.DataFrame, is_turned: NDArray[np.bool_]) -> pd.DataFrame:
    """The comparisons, with the chosen answer as response b where a pair is turned."""
    return pd.DataFrame(
        {
            "comparison_id": [f"style-{row:05d}" for row in range(len(pairs))],
            "prompt_id": pairs["prompt_id"],
            "prompt": pairs["prompt"],
            "response_a": np.where(is_turned, pairs["rejected"], pairs["chosen"]),
            "response_b": np.where(is_turned, pairs["chosen"], pairs["rejected"]),
        }
    )


def _differences(comparisons: pd.DataFrame) -> NDArray[np.float64]:
    """g(a) - g(b) of length and Markdown, shape (n_pairs, 2)."""
    length, markdown = Length(ratio=1.5).measure, Markdown().measure
    rows = []
    for _, prompt, a, b in comparisons[["comparison_id", "prompt", "response_a", "response_b"]].to_numpy():
        longer_a, longer_b = length(prompt, a, b)
        rows.append((longer_a - longer_b, markdown(prompt, a) - markdown(prompt, b)))
    return np.array(rows, dtype=np.float64)


def _vote_rows(
    comparisons: pd.DataFrame, annotators: NDArray[np.int64], winner: NDArray[np.str_], config: StyleConfig
) -> pd.DataFrame:
    """One row for each vote, pair after pair."""
    rows = comparisons.loc[comparisons.index.repeat(annotators.shape[1])].reset_index(drop=True)
    classes = np.repeat(list(config.class_means), config.annotators_per_class)
    drawn = annotators.ravel()
    return rows.assign(
        winner=winner.ravel(),
        annotator=[f"constructed-style-{k:02d}" for k in drawn],
        annotator_class=classes[drawn],
    )
