"""Topics of the kitchen and the house."""

from __future__ import annotations

from badpo.data.corpora.bundled.topics import topic

HOME_TOPICS = (
    topic(
        "bread",
        tasks="keep a loaf fresh; bake a plain loaf; store bread for a week; freeze some bread; make old bread soft",
        tools="a clean cloth; a paper bag; a bread knife; a warm oven",
        steps="wrap the loaf in a dry cloth; let the loaf cool first; keep the bread away from the sun; "
        "cut only what you eat today; put the cut side down on the board; warm the loaf in the oven; "
        "clean the bread box often; freeze half of the loaf early",
        details="let the bread rest for 20 minutes; keep it for 3 days at most; bake it for 40 minutes; "
        "use 2 spoons of salt",
        reasons="damp air makes the crust soft; warm bread loses water fast; old crumbs go bad; bread dries in the cold",
        aims="the crust stays crisp; the inside stays soft; nothing goes to waste",
        mistakes="leave the loaf in the rain; wash the bread with soap; keep the bread on a hot stove; "
        "close a hot loaf in plastic",
    ),
    topic(
        "soup",
        tasks="cook a good soup; make a thin soup thick; fix a soup with too much salt; cook soup from old bread; "
        "make soup for the week",
        tools="a big pot; a wooden spoon; a few potatoes; some fresh herbs",
        steps="cut the onions small; fry the onions in oil; add the water slowly; stir the soup now and then; "
        "taste it before you add salt; cook it with the lid on; add the herbs at the end; mash some of the potatoes",
        details="cook it for 30 minutes; use 2 onions and 4 potatoes; add half a cup of milk; let it rest for 5 minutes",
        reasons="fried onions taste sweet; herbs lose their taste when cooked long; potatoes take up the salt; "
        "a low heat keeps the taste",
        aims="the soup tastes full; the soup gets thick; everyone likes it",
        mistakes="boil the soup dry; add the salt with a big cup; put ice in the hot pot; cook it with the lid in the soup",
    ),
    topic(
        "rice",
        tasks="cook rice in a pot; keep rice from sticking; cook rice for many people; warm up cold rice; "
        "make plain rice taste better",
        tools="a heavy pot; a tight lid; a fork; a fine sieve",
        steps="rinse the rice in cold water; let the water run off; bring the water to a boil; turn the heat down low; "
        "keep the lid on the pot; take the pot off the heat; loosen the rice with a fork; add a little oil",
        details="use 2 cups of water for each cup of rice; cook it for 15 minutes; let it stand for 10 minutes; "
        "rinse it 3 times",
        reasons="the starch makes it stick; steam does the last part; a high heat burns the bottom; "
        "lifting the lid lets the steam out",
        aims="every grain stays loose; the rice does not burn; the rice is soft but firm",
        mistakes="stir the rice all the time; use dry heat and no water; leave warm rice out for 2 days; "
        "cook it on the highest heat",
    ),
    topic(
        "eggs",
        tasks="boil eggs well; peel boiled eggs; make a soft omelette; tell if an egg is fresh; fry an egg for breakfast",
        tools="a small pan; a bowl of cold water; a spoon; some butter",
        steps="take the eggs out of the fridge early; lower the eggs into the water with a spoon; cool the eggs at once; "
        "heat the butter slowly; beat the eggs with a fork; crack the shell all around; "
        "place the egg in a bowl of water; keep the heat low",
        details="boil them for 8 minutes; wait 5 minutes before you peel them; use 3 eggs for 2 people; "
        "keep them for 3 weeks at most",
        reasons="cold water loosens the shell; a fresh egg sinks; high heat makes the egg hard; cold eggs crack in hot water",
        aims="the shell comes off in one piece; the yolk stays soft; the egg does not crack",
        mistakes="boil the eggs for 2 hours; put a whole egg in the microwave; peel the eggs before you boil them; "
        "throw the eggs into the pot",
    ),
    topic(
        "coffee",
        tasks="make better coffee; make coffee without a machine; keep coffee beans fresh; make coffee less bitter; "
        "make cold coffee",
        tools="a clean pot; a paper filter; a hand mill; a kettle",
        steps="grind the beans just before use; warm the cup first; wet the filter with hot water; pour the water slowly; "
        "use fresh water each time; keep the beans in a closed jar; clean the pot after use; stir it once",
        details="use 2 spoons for each cup; wait 4 minutes; let the boiled water cool for 1 minute; buy beans for 2 weeks",
        reasons="boiling water makes it bitter; old oil in the pot tastes bad; air takes the smell away; "
        "ground coffee gets old fast",
        aims="the coffee tastes mild; the smell stays in the jar; it does not get bitter",
        mistakes="boil the coffee again and again; store the beans next to the onions; use the same filter twice; "
        "use warm water from the tap",
    ),
    topic(
        "cake",
        tasks="bake a simple cake; keep a cake moist; get a cake out of the tin; bake a cake without eggs; "
        "save a dry cake",
        tools="a round tin; baking paper; a big bowl; a thin stick",
        steps="heat the oven first; mix the butter and the sugar; add the flour in small parts; line the tin with paper; "
        "put the tin in the middle of the oven; test the cake with a stick; let the cake cool in the tin; "
        "pour some juice over the cake",
        details="bake it for 45 minutes; use 4 eggs and 2 cups of flour; let it cool for 15 minutes; heat the oven to 180",
        reasons="a cold oven makes it flat; a hot cake breaks; long mixing makes it tough; the paper keeps it from sticking",
        aims="the cake comes out whole; the cake stays moist; the top gets brown",
        mistakes="open the oven every minute; bake the cake in a paper cup; use salt in place of sugar; "
        "cut the cake while it is in the oven",
    ),
    topic(
        "salad",
        tasks="make a fresh salad; keep a salad crisp; make a salad that fills me; mix a good dressing; "
        "take a salad to work",
        tools="a large bowl; a sharp knife; a jar with a lid; good oil",
        steps="wash the leaves in cold water; dry the leaves well; tear the leaves by hand; add beans or cheese; "
        "shake oil and lemon in a jar; keep the dressing apart; put the heavy things at the bottom; add some nuts",
        details="use 3 spoons of oil for 1 of lemon; wash the leaves 2 times; add the dressing 5 minutes before you eat; "
        "use 4 kinds of leaves",
        reasons="wet leaves get limp; beans make it last; a knife makes the edges brown; the dressing softens the leaves",
        aims="the leaves stay crisp; you are full for longer; every leaf has taste",
        mistakes="boil the leaves; add the dressing a day before; store the salad in the sun; use a cup of salt",
    ),
    topic(
        "laundry",
        tasks="wash a wool jumper; get a red stain out of a shirt; dry clothes fast; keep white shirts white; "
        "stop clothes from smelling damp",
        tools="mild soap; a drying rack; a soft brush; cold water",
        steps="read the label first; sort the clothes by color; treat the stain at once; press the water out by hand; "
        "hang the clothes with space between them; open a window; dry wool flat on a towel; rinse it well",
        details="wash it at 30 degrees; soak it for 2 hours; dry it for 1 day; use 1 spoon of soap",
        reasons="hot water shrinks wool; a dry stain is hard to remove; air takes the damp away; too much soap stays inside",
        aims="the color stays bright; the wool keeps its shape; the clothes smell fresh",
        mistakes="boil the wool; rub the stain with mud; fold the clothes while wet; put red socks with white shirts",
    ),
    topic(
        "windows",
        tasks="clean windows without streaks; clean a high window; stop water on the window in winter; "
        "get paint off the glass; clean old window frames",
        tools="a rubber blade; a bucket of warm water; an old newspaper; a little vinegar",
        steps="brush the dust off first; wash the frame before the glass; use only a little soap; "
        "pull the blade from top to bottom; wipe the edge with a dry cloth; wait for a cloudy day; "
        "let fresh air in; change the water often",
        details="use 2 drops of soap; open the window for 10 minutes; clean them 4 times a year; "
        "mix 1 cup of vinegar with 4 cups of water",
        reasons="sun dries the soap too fast; dirty water leaves streaks; warm damp air turns to water; dust scratches the glass",
        aims="the glass gets clear; no streaks stay; the frame lasts longer",
        mistakes="use sand on the glass; clean the glass with oil; stand on a loose chair; wash it with a muddy cloth",
    ),
    topic(
        "floor",
        tasks="clean a wooden floor; stop a floor from creaking; fix a scratch in the floor; protect a new floor; "
        "get wax off the floor",
        tools="a soft broom; a damp cloth; a bit of wax; felt pads",
        steps="sweep the floor first; wring the cloth out well; wipe along the wood; dry the floor at once; "
        "put pads under the chairs; rub a little wax into the scratch; find the loose board; leave your shoes at the door",
        details="clean it once in 2 weeks; let the wax dry for 3 hours; use 4 pads for each chair; test it on 1 small spot",
        reasons="water makes wood swell; sand scratches the wood; a loose board rubs on the nail; wax fills the gap",
        aims="the wood stays smooth; the floor makes no noise; the scratch cannot be seen",
        mistakes="pour a bucket of water on the wood; drag the table over the floor; paint over the dust; "
        "scrape it with a fork",
    ),
    topic(
        "drain",
        tasks="clear a slow drain; stop a bad smell from the sink; keep hair out of the drain; clean the pipe below the sink; "
        "find a leak under the sink",
        tools="a rubber plunger; a long wire; a bucket; baking soda",
        steps="take the hair out by hand; cover the other hole with a cloth; pour hot water down the drain; "
        "place a bucket below the pipe; open the lower part of the pipe; brush the parts clean; "
        "close the pipe by hand; run the water and look for drops",
        details="pump 10 times; wait 15 minutes; use half a cup of soda; clean it every 2 months",
        reasons="old fat holds the dirt; the bucket catches the water; air must not escape; hair forms a plug",
        aims="the water runs off fast; the smell goes away; the pipe stays tight",
        mistakes="pour fat down the drain; hit the pipe with a hammer; push the hair deeper; open the pipe with the water on",
    ),
    topic(
        "painting walls",
        tasks="paint a wall evenly; paint over a dark wall; choose a color for a room; clean brushes after painting; "
        "fill a hole in the wall",
        tools="a wide roller; masking tape; a small brush; a dust sheet",
        steps="cover the floor; wipe the dust off the wall; tape the edges; fill the holes and sand them; "
        "paint the corners first; roll from top to bottom; let the first coat dry; wash the brush at once",
        details="let it dry for 6 hours; give it 2 coats; use 1 can for each wall; wait 1 day before you move in",
        reasons="dust keeps the paint from holding; wet paint shows marks; dark walls shine through; dry paint ruins the brush",
        aims="the color looks even; the edges stay clean; one can is enough",
        mistakes="paint over wet plaster; paint with the window open in rain; mix the paint with oil; start with the floor",
    ),
    topic(
        "shelf",
        tasks="hang a shelf on the wall; build a small shelf; stop a shelf from bending; hang a heavy picture; "
        "choose screws for a wall",
        tools="a drill; a level; strong screws; a pencil",
        steps="mark the holes with a pencil; check for pipes in the wall; hold the level on the board; "
        "drill slowly and straight; push the plugs into the holes; tighten the screws by hand; "
        "put heavy books at the ends; pull on it gently to test it",
        details="use 3 screws on each side; drill 5 centimeters deep; leave 30 centimeters between boards; "
        "load it with 10 kilos at most",
        reasons="a soft wall needs plugs; a long board bends in the middle; pipes hide in the wall; a level shows small errors",
        aims="the shelf holds the weight; the board stays straight; nothing falls down",
        mistakes="glue the shelf to the paint; drill above a light switch; use one tiny nail; hang it before you measure",
    ),
)
